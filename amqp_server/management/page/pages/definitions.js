// Definitions: everything that was declared, to download and upload as one file.

import {getText, post} from "../api.js";
import {append, button, fill, h} from "../dom.js";
import {ask} from "../dialog.js";
import {json} from "../format.js";
import {section} from "../list.js";
import {done, refused} from "../notice.js";
import {ofVhost, vhost} from "../vhost.js";

export async function show(root) {
  const where = vhost() ? `virtual host ${vhost()}` : "all virtual hosts, with users";
  const file = h("input", {type: "file", accept: "application/json,.json", required: true, "aria-label": "File"});
  const answer = h("div", {"aria-live": "polite"});

  async function down() {
    try {
      const told = await getText(ofVhost("definitions"));
      const url = URL.createObjectURL(new Blob([told], {type: "application/json"}));
      const stamp = new Date().toISOString().slice(0, 16).replace(":", "-");
      h("a", {href: url, download: `mqd-definitions-${stamp}.json`}).click();
      setTimeout(() => URL.revokeObjectURL(url), 10_000);
    } catch (error) {
      refused(error);
    }
  }

  async function up(event) {
    event.preventDefault();
    fill(answer);
    const text = await file.files[0].text();
    const question = `What is in ${file.files[0].name} is declared in ${where}. What is there already stays or is replaced.`;
    if (!(await ask("Import definitions?", question, "Import"))) return;
    try {
      const told = await post(ofVhost("definitions"), text);
      done("The definitions were imported.");
      if (told?.skipped) {
        fill(
          answer,
          h("p", {}, "This has no counterpart here, and was left out:"),
          h("pre", {class: "card"}, json(told.skipped)),
        );
      }
    } catch (error) {
      fill(answer, h("p", {class: "refusal", role: "alert"}, error.message));
    }
  }

  append(root, [
    h("div", {class: "title"}, h("h1", {}, "Definitions")),
    h("p", {class: "about"}, `Of ${where}: choose at the top. The file has hashes of passwords in it: keep it safe.`),
    section("Export", button("Download", down, "primary")),
    section(
      "Import",
      h("p", {class: "about"}, "A file of mqd or of RabbitMQ."),
      h("form", {class: "row", onsubmit: up}, file, h("button", {}, "Import")),
      answer,
    ),
  ]);
}
