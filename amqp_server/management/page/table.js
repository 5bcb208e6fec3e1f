// Tables. Rows stay the same elements from one refresh to the next, so that nothing loses the focus.

import {button, fill, h, say} from "./dom.js";
import {count} from "./format.js";
import {keep} from "./route.js";

const PAGE_SIZE = 50;
const TYPING_MS = 250;

/**
 * columns: {label, text(row), href(row), sort, number, make(row, now)}. A column with `make` has an element for each row,
 * made once; `now()` returns the current row.
 */
export class Table {
  constructor(columns, keyOf, {caption, empty = "Nothing here."} = {}) {
    this.columns = columns;
    this.keyOf = keyOf;
    this.rows = new Map();
    this.heads = columns.map((column) => h("th", {role: "columnheader", scope: "col", class: column.number && "number"}, column.label));
    this.body = h("tbody", {role: "rowgroup"});
    this.empty = h("p", {class: "empty"}, empty);
    this.empty.hidden = true;
    this.element = h(
      "div",
      {class: "scroll", tabindex: "0", role: "region", "aria-label": caption},
      // Explicit roles: on a narrow screen it is not laid out as a table, and screen readers would not see one.
      h("table", {role: "table"}, h("thead", {role: "rowgroup"}, h("tr", {role: "row"}, this.heads)), this.body),
      this.empty,
    );
  }

  show(rows) {
    const wanted = new Map(rows.map((row) => [this.keyOf(row), row]));
    // First remove old rows: a row that has the focus keeps it only if it is not moved.
    for (const [key, line] of this.rows) {
      if (wanted.has(key)) continue;
      line.element.remove();
      this.rows.delete(key);
    }
    let before = null;
    for (const [key, row] of wanted) {
      const line = this.rows.get(key) ?? this.line(row);
      this.rows.set(key, line);
      line.row = row;
      this.update(line);
      const place = before === null ? this.body.firstChild : before.nextSibling;
      if (place !== line.element) this.body.insertBefore(line.element, place);
      before = line.element;
    }
    this.empty.hidden = wanted.size > 0;
  }

  line(row) {
    const line = {row, cells: [], element: h("tr", {role: "row"})};
    for (const column of this.columns) {
      let inner = null;
      let cell;
      if (column.make) cell = h("td", {role: "cell", class: "actions"}, column.make(row, () => line.row));
      else {
        inner = column.href ? h("a", {class: "name"}) : h("span", {class: "name"});
        cell = h("td", {role: "cell", class: column.number && "number", "data-label": column.label}, inner);
      }
      line.cells.push(inner);
      line.element.append(cell);
    }
    return line;
  }

  update(line) {
    this.columns.forEach((column, index) => {
      const inner = line.cells[index];
      if (inner === null) return;
      const text = column.text(line.row);
      // Without a link target, the text stays empty, too.
      const target = column.href?.(line.row) ?? undefined;
      say(inner, text === "" && target !== undefined ? "(empty name)" : text);
      if (!column.href) return;
      if (target === undefined) inner.removeAttribute("href");
      else if (inner.getAttribute("href") !== target) inner.setAttribute("href", target);
    });
  }
}

/** A table that the node filters and sorts, and sends page by page. */
export class PagedTable extends Table {
  /** `load(query)` asks the node; `query` is the query of the address. */
  constructor(columns, keyOf, {query, load, refresh, filtered = true, ...options}) {
    super(columns, keyOf, options);
    this.load = load;
    this.refresh = () => refresh();
    /** The order of the rows unless the user has chosen one. */
    this.usual = columns.find((column) => column.sort)?.sort ?? "";
    this.state = {
      page: Math.max(1, Number.parseInt(query.page ?? "1", 10) || 1),
      name: query.name ?? "",
      regex: query.regex === "1",
      sort: query.sort ?? this.usual,
      reverse: query.reverse === "1",
    };
    this.heads.forEach((head, index) => this.sortable(head, columns[index]));
    this.filter = h("input", {type: "search", "aria-label": "Filter by name", placeholder: "Filter by name", value: this.state.name});
    this.regex = h("input", {type: "checkbox"});
    this.regex.checked = this.state.regex;
    this.filter.addEventListener("input", () => this.typed());
    this.regex.addEventListener("change", () => this.change({regex: this.regex.checked, page: 1}));
    this.counted = h("span", {class: "counted", "aria-live": "polite"});
    this.back = button("Previous", () => this.change({page: this.state.page - 1}));
    this.next = button("Next", () => this.change({page: this.state.page + 1}));
    const bar = h(
      "div",
      {class: "bar"},
      filtered && [this.filter, h("label", {class: "check"}, this.regex, "regular expression")],
      h("div", {class: "pager"}, this.counted, this.back, this.next),
    );
    this.element = h("div", {}, bar, this.element);
    this.mark();
  }

  sortable(head, column) {
    if (!column.sort) return;
    const sorts = () => {
      const same = this.state.sort === column.sort;
      this.change({sort: column.sort, reverse: same ? !this.state.reverse : Boolean(column.number), page: 1});
    };
    fill(head, button(column.label, sorts, "sort"));
  }

  mark() {
    this.heads.forEach((head, index) => {
      const sort = this.columns[index].sort;
      if (!sort) return;
      const direction = this.state.reverse ? "descending" : "ascending";
      head.setAttribute("aria-sort", sort === this.state.sort ? direction : "none");
    });
  }

  typed() {
    clearTimeout(this.typing);
    this.typing = setTimeout(() => this.change({name: this.filter.value, page: 1}), TYPING_MS);
  }

  change(part) {
    // The user has opened another page after typing.
    if (!this.element.isConnected) return;
    Object.assign(this.state, part);
    const {page, name, regex, sort, reverse} = this.state;
    keep({
      page: page > 1 ? page : "",
      name,
      regex: regex ? "1" : "",
      sort: sort === this.usual ? "" : sort,
      reverse: reverse ? "1" : "",
    });
    this.mark();
    this.refresh();
  }

  async showPage() {
    const {page, name, regex, sort, reverse} = this.state;
    const query = {page, page_size: PAGE_SIZE, name, use_regex: regex, sort, sort_reverse: reverse};
    let told;
    try {
      told = await this.load(query);
    } catch (error) {
      if (error.kind !== "page_out_of_range" || page === 1) throw error;
      this.state.page = 1;
      told = await this.load({...query, page: 1});
    }
    this.show(told.items);
    const of = told.filtered_count === told.total_count ? "" : ` of ${count(told.total_count)}`;
    say(this.counted, `${count(told.filtered_count)}${of}, page ${count(told.page)} of ${count(told.page_count)}`);
    this.back.disabled = told.page <= 1;
    this.next.disabled = told.page >= told.page_count;
  }
}
