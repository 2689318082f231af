// The report's data, parsed once; the lanes and frames of a session are unpacked when it is opened.

const data = JSON.parse(byId("data").textContent);
const BUCKETS = 500;
const SIDES = ["dialer", "acceptor"];
const CAUSES = ["no-reply", "no-credit", "slow-reader", "head-of-line", "transport"];
const CAUSE_WORDS = ["no reply", "no send credit", "slow reader", "head-of-line blocked", "network"];
const CAUSE_MEANINGS = {
  "no-reply": "One side had ended its half, asked or made an offer, and the other side did not answer for seconds.",
  "no-credit": "The receiver had granted no credit, or too little for the next frame: the sender was not allowed to send.",
  "slow-reader": "The receiver did not read: its TCP window was closed, or the window of the stream stayed full.",
  "head-of-line": "Another stream kept the connection busy with more than its fair share, and this stream waited behind it.",
  transport: "The network lost or delayed bytes, or they were not captured, for at least half of the pause.",
};
const CAUSE_REMEDIES = {
  "no-reply": "Look at what the answering side was doing then: it was free to send, and did not.",
  "no-credit": "Let the receiver grant credit earlier, or in larger amounts: as it reads, and not only once everything is read.",
  "slow-reader": "Find out why the receiving application does not read; a larger window only moves the pause.",
  "head-of-line": "Send large content in smaller frames, let the streams take turns, or give the large one a connection of its own.",
  transport: "Look at the network, and at the capture: retransmissions show in Wireshark as well.",
};
const ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const DIGITS = new Map([...ALPHABET].map((letter, value) => [letter, value]));

/** Two characters per bucket: 0 nothing, 1 frames without content, else 2 + 64 log2(bytes). */
function unpackLane(text) {
  const cells = new Float64Array(BUCKETS);
  for (let i = 0; i < BUCKETS; i++) {
    const code = DIGITS.get(text[2 * i]) * 64 + DIGITS.get(text[2 * i + 1]);
    cells[i] = code < 2 ? -code : 2 ** ((code - 2) / 64);
  }
  return cells; // -1: frames without content
}

function unpackStreams(columns) {
  return columns.key.map((_, i) => {
    const stream = { index: i };
    for (const column of Object.keys(columns)) stream[column] = columns[column][i];
    return stream;
  });
}

function unpackFrames(columns) {
  let at = 0;
  return columns.at.map((step, i) => {
    at += step;
    return {
      at,
      side: columns.side[i] === "a" ? 1 : 0,
      verdict: Number(columns.verdict[i]),
      kind: data.kinds[columns.kind[i]],
      stream: columns.stream[i],
      index: columns.index[i],
      offset: columns.offset[i],
      size: columns.size[i],
      payload: columns.payload[i],
      amount: columns.amount[i],
      data: columns.data ? columns.data[i] : null,
    };
  });
}

const opened = new Map();

/** The unpacked details of a session, or null if the report has none. */
function detailOf(index) {
  if (index >= data.details.length) return null;
  if (!opened.has(index)) opened.set(index, unpackDetail(data.details[index], data.sessions[index]));
  return opened.get(index);
}

function unpackDetail(raw, session) {
  const streams = unpackStreams(raw.streams);
  const lanes = streams
    .filter((stream) => stream.lane)
    .map((stream, i) => ({
      stream,
      sides: [unpackLane(raw.lanes[i][0]), unpackLane(raw.lanes[i][1])],
      blocked: raw.lanes[i][2],
      colour: i,
    }));
  const rest = { stream: null, sides: raw.rest.map(unpackLane), blocked: [], colour: -1 };
  rest.streams = Math.max(0, session.streams - lanes.length);
  if (rest.sides.some((cells) => cells.some((cell) => cell !== 0))) lanes.push(rest);
  const laneOf = new Map(lanes.map((lane, i) => [lane.stream ? lane.stream.index : -1, i]));
  return {
    session,
    width: raw.width,
    end: Math.max(session.lasted, raw.width),
    total: raw.total,
    streams,
    lanes,
    laneOf,
    marks: raw.marks.map(([at, stream, side, rule, index, level, text]) => (
      { at, stream, side, rule, index, level, text })),
    stalls: raw.stalls.map(([at, lasted, stream, side, cause, text]) => (
      { at, lasted, stream, side, cause, text })),
    frames: unpackFrames(raw.frames),
    allFrames: raw.allFrames,
  };
}

// The selection. The parts of the page that show it register with `watch`.
const view = { session: -1, detail: null, stream: -1, from: 0, to: 1, cursor: null, lane: 0 };
const watchers = [];

function watch(handler) {
  watchers.push(handler);
}

/** Notify every part of a change: "session", "stream", "window", "cursor" or "theme". */
function changed(what) {
  for (const handler of watchers) handler(what);
}

function openSession(index) {
  view.session = index;
  view.detail = detailOf(index);
  view.stream = -1;
  view.lane = 0;
  view.cursor = null;
  view.from = 0;
  view.to = view.detail ? view.detail.end : 1;
  changed("session");
}

function chooseStream(index) {
  view.stream = index;
  const lane = view.detail.laneOf.get(index);
  if (lane !== undefined) view.lane = lane;
  changed("stream");
}

/** Select a time window of the session, at least 20 microseconds long and within its ends. */
function chooseWindow(from, to) {
  const end = view.detail.end;
  const wide = Math.min(end, Math.max(20, to - from));
  view.from = Math.max(0, Math.min(from, end - wide));
  view.to = view.from + wide;
  changed("window");
}

function zoom(factor, around) {
  const at = around === undefined ? (view.from + view.to) / 2 : around;
  chooseWindow(at - (at - view.from) * factor, at + (view.to - at) * factor);
}

const zoomed = () => view.detail && view.to - view.from < view.detail.end * 0.9999;

function labelOf(stream) {
  return stream.name ? `${stream.key} ${stream.name}` : stream.key;
}
