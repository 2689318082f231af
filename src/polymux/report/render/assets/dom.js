// Elements and texts. Data reaches the page through text nodes only.

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

/** A text from a capture, isolated so that right-to-left letters do not affect the text around it. */
const name = (text) => el("bdi", { class: "name" }, text);

function count(n) {
  return Math.round(n).toLocaleString("en-GB");
}

function many(n, one, more) {
  return `${count(n)} ${n === 1 ? one : more || one + "s"}`;
}

// Sizes, rates and durations: the same text for the same number as polymux/text/units.py.

/** One decimal below 10, none from there on; halves are rounded up. */
function formatNumber(value) {
  const tenths = Math.floor(value * 10 + 0.5);
  if (tenths >= 100) return String(Math.floor(value + 0.5));
  return tenths % 10 ? `${Math.floor(tenths / 10)}.${tenths % 10}` : String(tenths / 10);
}

/** A number of bytes: 500 bytes, 100 KiB, 1.5 MiB. */
function sizeText(bytes) {
  if (bytes < 1024) return bytes === 1 ? "1 byte" : `${bytes} bytes`;
  let value = bytes;
  for (const unit of ["KiB", "MiB", "GiB"]) {
    value /= 1024;
    if (value < 1023.5) return `${formatNumber(value)} ${unit}`;
  }
  return `${formatNumber(value / 1024)} TiB`;
}

/** Bits per second: 10 Mbit/s. */
function rateText(bits) {
  let value = bits;
  for (const unit of ["bit/s", "kbit/s", "Mbit/s"]) {
    if (value < 999.5) return `${formatNumber(value)} ${unit}`;
    value /= 1000;
  }
  return `${formatNumber(value)} Gbit/s`;
}

/** A duration in microseconds: 850 us, 80 ms, 5 s, 3 min 20 s. */
function durationText(us) {
  if (us < 1000) return `${Math.floor(us)} us`;
  if (us / 1e3 < 999.5) return `${formatNumber(us / 1e3)} ms`;
  if (us / 1e6 < 119.5) return `${formatNumber(us / 1e6)} s`;
  const seconds = Math.floor((us + 5e5) / 1e6);
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
}

/** A time in microseconds from the session's start, with the decimals that a step of `step` needs. */
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
