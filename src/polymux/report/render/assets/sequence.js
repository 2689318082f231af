// The sequence diagram of the selected stream: which side sent what and when, with its credit.

const SEQUENCE_ROWS = 40; // arrows shown at once; more on request
const MIN_RUN = 3; // frames alike, one after another, that become one arrow
const MAX_WIDTH = 980;
const ROW_HEIGHT = 26;
const SEQUENCE_TOP = 34;
const TIME_ROOM = 76; // for the times on the left
const BAR_ROOM = 48; // for the credit of a side, beside its line
const MIN_PAUSE_US = 50000; // a pause between two frames that is written out
const SVG = "http://www.w3.org/2000/svg";
let sequenceRows = SEQUENCE_ROWS;

function startSequence() {
  watch((what) => {
    if (what === "session" || what === "stream" || what === "window") {
      sequenceRows = SEQUENCE_ROWS;
      showSequence();
    }
  });
  let width = 0;
  new ResizeObserver(() => {
    const now = byId("sequence-box").clientWidth;
    if (now && now !== width) { width = now; showSequence(); }
  }).observe(byId("sequence-box"));
}

function svg(tag, attributes, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, String(value));
  put(node, children);
  return node;
}

function showSequence() {
  const box = byId("sequence-box");
  const stream = view.detail ? view.detail.streams[view.stream] : undefined;
  byId("sequence").hidden = !view.detail;
  if (!stream) {
    fill(byId("sequence-title"), "Sequence of one stream");
    fill(byId("sequence-count"));
    fill(box, el("p", { class: "plain" }, "Choose a stream, on its lane or in the list below, to see which side sent what and when."));
    return;
  }
  fill(byId("sequence-title"), "Sequence of ", name(labelOf(stream)));
  const all = view.detail.frames.filter((f) => f.stream === stream.index);
  const frames = all.filter((f) => f.at >= view.from && f.at <= view.to);
  const ledgers = [0, 1].map((side) => ledgerOf(stream, all, side));
  const rows = sequenceRowsOf(stream, frames);
  const shown = rows.slice(0, sequenceRows);
  const missing = stream.framesD + stream.framesA - all.length;
  fill(byId("sequence-count"), many(frames.length, "frame"), zoomed() ? " in this window" : "",
    missing > 0 ? `; ${count(missing)} of this stream are not in this report, and its credit is not drawn` : "");
  const left = rows.length - shown.length;
  fill(box, frames.length ? sequencePicture(stream, shown, frames.length, ledgers) : el("p", { class: "plain" }, "No frame of this stream is in this window."),
    left > 0 && el("button", { type: "button", on: { click: () => { sequenceRows += 4 * SEQUENCE_ROWS; showSequence(); } } },
      `show ${many(Math.min(left, 4 * SEQUENCE_ROWS), "more row", "more rows")} of ${count(left)}`));
}

const SPENDS = /^(Content|STREAM_DATA|Write)$|^Data/; // kinds of frames that cost credit
const GRANTS = /^(Offer|OfferAccepted|ContentProcessed|STREAM_REQUEST_DATA|GiveCredit)$|^WindowUpdate/;
const RESIZES = "ChannelWindowAdjust"; // names the new size of a window
const FORGOES = "ForgoCredit";

/** What a frame costs: a byte, a message or an item; null if its frames do not add up to `units`. */
function costOf(contents, units) {
  const sum = (cost) => contents.reduce((all, frame) => all + cost(frame), 0);
  const costs = [["bytes", (f) => f.payload], ["messages", () => 1], ["items", (f) => f.amount || 0]];
  return costs.find(([, cost]) => sum(cost) === units) || null;
}

/**
 * The credit that a side has left after each frame, by the frame: what it was granted less what it
 * spent. Null without credit, or where the frames in this report do not show all of it.
 */
function ledgerOf(stream, frames, side) {
  const total = side ? stream.creditA : stream.creditD;
  if (total === null || frames.length !== stream.framesD + stream.framesA) return null;
  const spending = frames.filter((f) => f.side === side && SPENDS.test(f.kind));
  const found = costOf(spending, side ? stream.unitsA : stream.unitsD);
  if (!found || frames.some((f) => f.kind === FORGOES)) return null;
  const [unit, cost] = found;
  const steps = new Map(spending.map((f) => [f, -cost(f)]));
  let granted = 0;
  let window = 0;
  for (const frame of frames) {
    if (frame.side === side || frame.amount === null) continue;
    let amount = 0;
    if (frame.kind === RESIZES) amount = Math.max(0, frame.amount - window);
    else if (GRANTS.test(frame.kind)) amount = frame.amount;
    else continue;
    if (frame.kind.startsWith("Offer") || frame.kind === RESIZES) window = Math.max(window, frame.amount);
    granted += amount;
    steps.set(frame, amount);
  }
  let credit = Number(total) - granted;
  if (credit < 0) return null;
  let peak = credit;
  const left = new Map();
  for (const frame of frames) {
    if (!steps.has(frame)) continue;
    credit += steps.get(frame);
    if (credit < 0 && frame.verdict !== 2) return null; // these are not the numbers of a ledger
    left.set(frame, credit);
    peak = Math.max(peak, credit);
  }
  return peak > 0 ? { left, peak, unit } : null;
}

/** The rows of the picture: frames, runs of frames that are alike, pauses and stalls. */
function sequenceRowsOf(stream, frames) {
  const waiting = view.detail.stalls.filter((s) => s.stream === stream.index && s.at + s.lasted >= view.from && s.at <= view.to);
  waiting.sort((a, b) => a.at + a.lasted - b.at - b.lasted);
  const rows = [];
  let run = [];
  let last = null;
  const flush = () => {
    if (run.length >= MIN_RUN) rows.push({ frame: run[run.length - 1], run });
    else rows.push(...run.map((frame) => ({ frame, run: [frame] })));
    run = [];
  };
  for (const frame of frames) {
    const over = [];
    while (waiting.length && waiting[0].at + waiting[0].lasted <= frame.at + 1000) over.push(waiting.shift());
    const paused = last !== null && frame.at - last >= MIN_PAUSE_US;
    if (over.length || paused || !isAlike(run[0], frame)) flush();
    rows.push(...over.map((stall) => ({ stall })));
    if (paused && !over.length) rows.push({ pause: frame.at - last });
    run.push(frame);
    last = frame.at;
  }
  flush();
  rows.push(...waiting.map((stall) => ({ stall })));
  return rows;
}

/** Whether a frame can stand in one arrow with those before it: content of the same side. */
function isAlike(first, frame) {
  return first !== undefined && first.side === frame.side && first.kind === frame.kind
    && first.verdict === 0 && frame.verdict === 0 && (frame.amount === null || SPENDS.test(frame.kind));
}

function sequencePicture(stream, rows, frames, ledgers) {
  const width = Math.min(MAX_WIDTH, Math.max(420, byId("sequence-box").clientWidth));
  const lines = [TIME_ROOM + BAR_ROOM, width - BAR_ROOM - 8];
  const height = SEQUENCE_TOP + rows.length * ROW_HEIGHT + 10;
  const picture = svg("svg", {
    class: "sequence", width, height, viewBox: `0 0 ${width} ${height}`, role: "img",
    "aria-label": `Sequence diagram of stream ${stream.key}: ${many(frames, "frame")} between dialer and acceptor. The table of frames below has the same, as text.`,
  });
  lines.forEach((x, side) => {
    picture.append(
      svg("line", { class: "lifeline", x1: x, y1: SEQUENCE_TOP - 8, x2: x, y2: height - 4 }),
      svg("text", { class: `party ${SIDES[side]}`, x, y: 16, "text-anchor": side ? "end" : "start" }, SIDES[side]));
  });
  rows.forEach((row, i) => {
    const y = SEQUENCE_TOP + i * ROW_HEIGHT + ROW_HEIGHT / 2;
    if (row.frame) picture.append(...frameRow(row, lines, y, ledgers));
    else picture.append(...pauseRow(row, lines, y));
  });
  return picture;
}

function frameRow({ frame, run }, lines, y, ledgers) {
  const [from, to] = frame.side ? [lines[1], lines[0]] : lines;
  const step = frame.side ? 1 : -1;
  const verdict = VERDICTS[frame.verdict];
  const nodes = [
    svg("text", { class: "at", x: TIME_ROOM - 8, y: y + 4, "text-anchor": "end" }, moment(run[0].at, 1)),
    svg("line", { class: `arrow ${SIDES[frame.side]} ${verdict}`, x1: from, y1: y + 5, x2: to, y2: y + 5 }),
    svg("path", { class: `tip ${SIDES[frame.side]} ${verdict}`, d: `M ${to} ${y + 5} l ${step * 8} -4 l 0 8 z` }),
    svg("text", { class: `what ${verdict}`, x: (from + to) / 2, y: y + 1, "text-anchor": "middle" }, frameWords(frame, run, ledgers)),
  ];
  [0, 1].forEach((side) => {
    const left = ledgers[side] && ledgers[side].left.get(frame);
    if (left === undefined || left === null) return;
    nodes.push(...creditBar(ledgers[side], side, left, lines[side], y));
  });
  return nodes;
}

function frameWords(frame, run, ledgers) {
  const parts = [run.length > 1 ? `${count(run.length)} × ${frame.kind}` : frame.kind];
  const payload = run.reduce((sum, each) => sum + each.payload, 0);
  if (payload) parts.push(sizeText(payload));
  if (run.length > 1 && frame.at > run[0].at) parts.push(`in ${durationText(frame.at - run[0].at)}`);
  if (frame.amount !== null && !SPENDS.test(frame.kind)) parts.push(`${GRANTS.test(frame.kind) ? "+" : ""}${count(frame.amount)}`);
  if (frame.verdict) parts.push(frame.verdict === 2 ? "✖ violation" : "crossed");
  const own = ledgers[frame.side];
  const peer = ledgers[1 - frame.side];
  if (own && own.left.has(frame)) parts.push(`credit left ${creditText(own, own.left.get(frame))}`);
  else if (peer && peer.left.has(frame)) parts.push(`credit of the ${SIDES[1 - frame.side]} now ${creditText(peer, peer.left.get(frame))}`);
  return parts.join(" · ");
}

const creditText = (ledger, left) => (ledger.unit === "bytes" ? sizeText(Math.max(0, left)) : `${count(Math.max(0, left))} ${ledger.unit}`);

/** How much credit a side has left, beside its line: full, part, or an empty box for none. */
function creditBar(ledger, side, left, line, y) {
  const room = BAR_ROOM - 14;
  const x = side ? line + 6 : line - 6 - room;
  const wide = Math.max(0, Math.min(1, left / ledger.peak)) * room;
  return [
    svg("rect", { class: left > 0 ? "credit-box" : "credit-box none", x, y: y + 1, width: room, height: 8 }),
    svg("rect", { class: `credit ${SIDES[side]}`, x: side ? x : x + room - wide, y: y + 1, width: wide, height: 8 }),
  ];
}

function pauseRow(row, lines, y) {
  const middle = (lines[0] + lines[1]) / 2;
  if (!row.stall) {
    return [svg("text", { class: "pause", x: middle, y: y + 5, "text-anchor": "middle" }, `· · ·  ${durationText(row.pause)} without a frame  · · ·`)];
  }
  const { stall } = row;
  const room = lines[1] - lines[0] - 20;
  return [
    svg("text", { class: "at", x: TIME_ROOM - 8, y: y + 4, "text-anchor": "end" }, moment(stall.at, 1)),
    svg("rect", { class: `stalled ${CAUSES[stall.cause]}`, x: lines[0] + 10, y: y - 9, width: room, height: ROW_HEIGHT - 6, rx: 3 }),
    svg("text", { class: "stall-text", x: middle, y: y + 5, "text-anchor": "middle" }, `${SIDES[stall.side]} stalled ${durationText(stall.lasted)}: ${CAUSE_WORDS[stall.cause]}`),
  ];
}
