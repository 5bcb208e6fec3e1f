// Facts about one object: names and values, kept up to date.

import {h, say} from "./dom.js";

/** lines: [label, text(row), href(row), wide]; a line whose text is undefined is not shown. */
export class Facts {
  constructor(lines) {
    this.lines = lines.map(([label, text, href, wide]) => {
      const value = href ? h("a", {class: "name"}) : h("span", {class: "name"});
      const element = h("div", {hidden: true, class: wide ? "wide" : ""}, h("dt", {}, label), h("dd", {}, value));
      return {text, href, value, element};
    });
    this.element = h("dl", {class: "facts card"}, this.lines.map((line) => line.element));
  }

  show(row) {
    for (const {text, href, value, element} of this.lines) {
      const told = text(row);
      element.hidden = told === undefined || told === null || told === "";
      if (element.hidden) continue;
      say(value, told);
      if (href) value.setAttribute("href", href(row));
    }
  }
}
