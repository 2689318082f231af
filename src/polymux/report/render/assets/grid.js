// Tables that can be sorted, filtered and navigated with the arrow keys.

const PAGE = 200;

/**
 * Make a grid in `box`. `columns`: {label, value (for sorting), text or node (shown), number, wide,
 * title}. `options`: choose(row), called on enter or click; chosen(row); rowClass(row); between(row),
 * the line above a row, if any.
 */
function makeGrid(box, caption, columns, options) {
  const grid = { rows: [], sort: null, down: false, limit: PAGE };
  const body = el("tbody");
  const heads = columns.map((column, i) => el("th", { scope: "col", class: column.number ? "number" : "" },
    options.sortable === false ? column.label : el("button", {
      type: "button", title: column.title || null, on: { click: () => sortBy(i) },
    }, column.label)));
  const table = el("table", { role: options.choose ? "grid" : null }, el("caption", {}, caption), el("thead", {}, el("tr", {}, heads)), body);
  const more = el("button", { type: "button", class: "quiet more", on: { click: showMore } });
  fill(box, el("div", { class: "scroll" }, table), more);
  body.addEventListener("keydown", moveFocus);

  function sortBy(i) {
    grid.down = grid.sort === i ? !grid.down : Boolean(columns[i].number);
    grid.sort = i;
    show(grid.rows);
  }

  function sorted() {
    if (grid.sort === null) return grid.rows;
    const value = columns[grid.sort].value;
    const sign = grid.down ? -1 : 1;
    return [...grid.rows].sort((a, b) => sign * compare(value(a), value(b)));
  }

  function show(rows) {
    grid.rows = rows;
    heads.forEach((head, i) => {
      const order = grid.sort !== i ? "none" : grid.down ? "descending" : "ascending";
      if (options.sortable !== false) head.setAttribute("aria-sort", order);
    });
    const ordered = sorted();
    const nodes = [];
    ordered.slice(0, grid.limit).forEach((row) => {
      const gap = options.between && grid.sort === null && options.between(row);
      if (gap) nodes.push(el("tr", { class: "gap" }, el("td", { colspan: columns.length }, gap)));
      nodes.push(rowNode(row));
    });
    body.replaceChildren(...nodes);
    const first = body.querySelector("tr.chosen") || body.querySelector("tr[tabindex]");
    if (first) first.tabIndex = 0;
    const left = ordered.length - grid.limit;
    more.hidden = left <= 0;
    fill(more, `show ${count(Math.min(left, PAGE * 5))} more of ${count(left)}`);
  }

  function rowNode(row) {
    const classes = [options.rowClass ? options.rowClass(row) : ""];
    const chosen = options.chosen && options.chosen(row);
    if (chosen) classes.push("chosen");
    const node = el("tr", {
      tabindex: "-1", class: classes.join(" ").trim() || null,
      "aria-selected": options.chosen ? String(Boolean(chosen)) : null,
    }, columns.map((column) => el("td", { class: [column.number && "number", column.wide && "wide"].filter(Boolean).join(" ") || null },
      column.node ? column.node(row) : column.text ? column.text(row) : column.value(row))));
    if (options.choose) {
      node.addEventListener("click", (event) => {
        if (!event.target.closest("td button")) options.choose(row);
      });
      node.addEventListener("keydown", (event) => {
        if ((event.key === "Enter" || event.key === " ") && event.target === node) {
          event.preventDefault();
          options.choose(row);
        }
      });
    }
    return node;
  }

  function showMore() {
    const before = grid.limit;
    grid.limit += PAGE * 5;
    show(grid.rows);
    const rows = body.querySelectorAll("tr[tabindex]");
    if (rows[before]) focusRow(rows[before]);
  }

  function moveFocus(event) {
    const steps = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20, Home: -Infinity, End: Infinity };
    const row = event.target.closest("tr[tabindex]");
    if (!(event.key in steps) || !row || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    const rows = [...body.querySelectorAll("tr[tabindex]")];
    const target = Math.max(0, Math.min(rows.length - 1, rows.indexOf(row) + steps[event.key]));
    focusRow(rows[target]);
  }

  function focusRow(row) {
    for (const other of body.querySelectorAll('tr[tabindex="0"]')) other.tabIndex = -1;
    row.tabIndex = 0;
    row.focus();
  }

  return {
    show(rows) {
      grid.limit = PAGE;
      show(rows);
    },
    refresh() {
      const held = body.contains(document.activeElement);
      show(grid.rows);
      if (held && body.querySelector('tr[tabindex="0"]')) body.querySelector('tr[tabindex="0"]').focus();
    },
  };
}

function compare(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return -1;
  if (b === null || b === undefined) return 1;
  return typeof a === "string" ? a.localeCompare(String(b), "en", { numeric: true }) : a - b;
}

/** A predicate on a row's text: true if it contains every word of the filter. */
function matcher(text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return (rowText) => words.every((word) => rowText.toLowerCase().includes(word));
}
