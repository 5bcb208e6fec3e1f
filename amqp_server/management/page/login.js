// The login. The password is sent to the node once, and is never stored.

import {logIn} from "./api.js";
import {fill, h} from "./dom.js";

/** Show the form in an element; resolves with the user who has logged in. */
export function showLogin(root, reason = "") {
  return new Promise((resolve) => {
    const refusal = h("p", {class: "refusal", role: "alert"}, reason);
    const name = h("input", {
      name: "name",
      autocomplete: "username",
      autocapitalize: "none",
      spellcheck: "false",
      required: true,
    });
    const password = h("input", {
      name: "password",
      type: "password",
      autocomplete: "current-password",
      required: true,
    });
    const submit = h("button", {class: "primary"}, "Log in");
    const form = h(
      "form",
      {
        class: "login card",
        onsubmit: async (event) => {
          event.preventDefault();
          submit.disabled = true;
          fill(refusal);
          try {
            const told = await logIn(name.value, password.value);
            resolve(told);
          } catch (error) {
            fill(refusal, error.message);
            password.focus();
          }
          password.value = "";
          submit.disabled = false;
        },
      },
      h("h1", {}, "mqd"),
      h("label", {class: "field"}, h("span", {}, "User"), name),
      h("label", {class: "field"}, h("span", {}, "Password"), password),
      refusal,
      submit,
    );
    fill(root, h("main", {class: "entrance"}, form));
    document.title = "mqd: log in";
    name.focus();
  });
}
