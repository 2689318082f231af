// The findings: one entry per rule or cause, with its most significant occurrences.

const LEVELS = ["error", "warning", "stall", "note"];
const LEVEL_SIGNS = { error: "✖", warning: "▲", stall: "◼", note: "·" };
const FIRST_ITEMS = 3;
const hiddenLevels = new Set();

function startFindings() {
  const heading = byId("wrong-title");
  const found = data.findings.filter((finding) => finding.level !== "note");
  if (found.length) {
    fill(heading, "What is wrong");
  } else {
    const open = data.totals.unfinished;
    fill(heading, open || "Nothing is wrong");
    byId("findings").before(el("p", { class: open ? "plain" : "plain good" },
      `In ${many(data.totals.sessions, "session")}: ${data.totals.nothing}.`));
  }
  showLevels();
  showFindings();
}

function showLevels() {
  const chips = LEVELS.filter((level) => data.findings.some((f) => f.level === level)).map((level) => {
    const total = data.totals.levels[level];
    return el("button", {
      type: "button", class: `chip ${level}`, "aria-pressed": String(!hiddenLevels.has(level)),
      on: { click: () => toggleLevel(level) },
    }, el("i", { "aria-hidden": "true" }, LEVEL_SIGNS[level]), total ? ` ${many(total, level)}` : ` ${level}s`);
  });
  fill(byId("levels"), chips);
}

function toggleLevel(level) {
  if (!hiddenLevels.delete(level)) hiddenLevels.add(level);
  showLevels();
  showFindings();
  byId("levels").querySelector(`.${level}`).focus();
}

function showFindings() {
  const shown = data.findings.filter((finding) => !hiddenLevels.has(finding.level));
  fill(byId("findings"), shown.map(findingNode));
  if (data.findingsLeftOut) {
    byId("findings").append(el("li", { class: "dim" }, `and ${many(data.findingsLeftOut, "finding")} more`));
  }
}

function findingNode(finding) {
  const list = el("ul", { class: "items" });
  const node = el("li", { class: `finding ${finding.level}` },
    el("div", { class: "head" },
      el("i", { class: "sign", "aria-hidden": "true" }, LEVEL_SIGNS[finding.level]),
      finding.rule === null ? el("strong", {}, finding.title) : el("button", {
        type: "button", class: "rule", title: "the rule", on: { click: () => showRule(finding.rule) },
      }, data.rules[finding.rule].name),
      CAUSE_MEANINGS[finding.cause] && el("button", {
        type: "button", class: "rule", title: "what it means", on: { click: () => showCause(finding.cause) },
      }, finding.cause),
      finding.rule !== null && finding.title && el("span", {}, finding.title),
      el("span", { class: "push" }),
      el("span", { class: "dim" }, findingSums(finding))),
    list);
  fillItems(list, finding, FIRST_ITEMS);
  return node;
}

function findingSums(finding) {
  const parts = [];
  if (finding.cause === "capture") return "";
  if (finding.count > 1) parts.push(`${count(finding.count)} times`);
  if (finding.possible) parts.push(`${count(finding.possible)} only possible`);
  if (finding.lasted) parts.push(`${durationText(finding.lasted)} in total`);
  return parts.join(", ");
}

function fillItems(list, finding, limit) {
  fill(list, finding.items.slice(0, limit).map(itemNode));
  const hidden = finding.items.length - limit;
  const unseen = finding.count - finding.items.length;
  if (hidden > 0) {
    list.append(el("li", {}, el("button", {
      type: "button", class: "quiet",
      on: { click: () => {
        fillItems(list, finding, finding.items.length);
        const next = list.children[limit].querySelector("button");
        if (next) next.focus();
      } },
    }, `show ${count(hidden)} more`), unseen > 0 && el("span", { class: "dim" }, ` of ${count(unseen + hidden)}`)));
  } else if (unseen > 0 && finding.items.length) {
    list.append(el("li", { class: "dim" }, `and ${count(unseen)} more in the tables`));
  }
}

function itemNode(item) {
  const session = item.session === null || item.session === undefined ? null : data.sessions[item.session];
  const place = [];
  if (session) place.push(`${session.dialer} → ${session.acceptor}`);
  else if (item.id) place.push(`session ${item.id}`);
  if (session && item.at !== null && item.at !== undefined) place.push(`at ${moment(item.at, 1e3)}`);
  if (item.index !== null && item.index !== undefined) place.push(`frame ${count(item.index)}`);
  const words = [
    item.stream && !item.text.split(/[\s:()]+/).includes(item.stream) && el("b", { class: "key" }, `${item.stream} `),
    name(item.text),
    (item.name || place.length > 0) && el("span", { class: "place" },
      item.name && [`${item.stream} `, name(item.name), " · "], place.join(" · ")),
    item.detail && el("span", { class: "detail" }, name(item.detail)),
  ];
  if (!session) return el("li", {}, words);
  const onLanes = detailOf(item.session) !== null && item.at !== null && item.at !== undefined;
  return el("li", {}, el("button", { type: "button", class: "item", title: onLanes ? "show it on the lanes" : "show its session", on: { click: () => goTo(item) } },
    words, el("span", { class: "go" }, onLanes ? "on the lanes" : "session")));
}

/** Open the session of an occurrence, select its stream and zoom to the time around it. */
function goTo(item) {
  openSession(item.session);
  if (view.detail) {
    const stream = view.detail.streams.find((s) => s.key === item.stream);
    if (item.at !== null && item.at !== undefined) {
      const margin = Math.max(item.lasted || 0, view.detail.end / 40);
      chooseWindow(item.at - margin, item.at + (item.lasted || 0) + margin);
    }
    if (stream) chooseStream(stream.index);
  }
  jump("session");
  if (view.detail) byId("lanes").focus({ preventScroll: true });
}
