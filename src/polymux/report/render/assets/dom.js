// Elements and texts. Everything that comes from the data reaches the page through a text node.

/** Make an element: attributes (class, data-..., aria-..., on: {event: handler}), then children. */
function el(tag, attributes, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [event, handler] of Object.entries(value)) node.addEventListener(event, handler);
    } else {
      node.setAttribute(name, value === true ? "" : String(value));
    }
  }
  put(node, children);
  return node;
}

function put(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

function fill(node, ...children) {
  node.replaceChildren();
  put(node, children);
}

const byId = (id) => document.getElementById(id);

/** A text of unknown origin: kept apart, so that right-to-left letters do not move its neighbours. */
const name = (text) => el("bdi", { class: "name" }, text);

function count(n) {
  return Math.round(n).toLocaleString("en-GB");
}

function many(n, one, more) {
  return `${count(n)} ${n === 1 ? one : more || one + "s"}`;
}

function short(value) {
  return value >= 99.95 ? value.toFixed(0) : value >= 9.995 ? value.toFixed(1) : value.toFixed(2);
}

function bytesText(n) {
  if (n < 1024) return `${n} B`;
  for (const unit of ["KiB", "MiB", "GiB"]) {
    n /= 1024;
    if (n < 1000) return `${short(n)} ${unit}`;
  }
  return `${short(n / 1024)} TiB`;
}

function rate(bits) {
  for (const unit of ["bit/s", "kbit/s", "Mbit/s", "Gbit/s"]) {
    if (bits < 1000) return `${short(bits)} ${unit}`;
    bits /= 1000;
  }
  return `${short(bits)} Tbit/s`;
}

/** How long: 850 µs, 80 ms, 5.00 s, 3 min 20 s. */
function span(us) {
  if (us < 1000) return `${Math.round(us)} µs`;
  if (us < 1e6) return `${short(us / 1e3)} ms`;
  if (us < 6e7) return `${short(us / 1e6)} s`;
  const seconds = Math.round(us / 1e6);
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  return `${count(Math.floor(seconds / 3600))} h ${Math.floor((seconds % 3600) / 60)} min`;
}

/** When, from the session's start, with as many decimals as the step between neighbours needs. */
function moment(us, step) {
  if (us === null || us === undefined) return "";
  const decimals = step >= 1e6 ? 0 : step >= 1e5 ? 1 : step >= 1e4 ? 2 : step >= 1e3 ? 3 : 6;
  return `${(us / 1e6).toFixed(decimals)} s`;
}

function date(us) {
  const at = new Date(us / 1000);
  if (us === null || us === undefined || Number.isNaN(at.getTime())) return "unknown time";
  return at.toISOString().replace("T", " ").replace(/\.\d+Z$/, " UTC");
}
