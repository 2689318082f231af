// The dialog of a rule: its sentence, section, severity and an example. The dialog of the keys.

const REACTION_WORDS = {
  ignore: "drops the frame and counts it",
  stream: "aborts the stream",
  session: "ends the session",
};
const ORIGIN_WORDS = {
  spec: "the protocol's specification",
  limit: "a limit of this program, which can be set",
  advice: "good practice, not the specification",
};

function showRule(index) {
  const rule = data.rules[index];
  const finding = data.findings.find((f) => f.rule === index);
  const box = byId("rule");
  fill(box,
    el("h2", { id: "rule-name" }, rule.name),
    el("p", { class: "sentence" }, rule.sentence || "This version of polymux has no page for this rule."),
    el("dl", {},
      rule.section && [el("dt", {}, "section"), el("dd", {}, rule.section)],
      rule.severity && [el("dt", {}, "severity"), el("dd", { class: rule.severity }, rule.severity)],
      rule.origin && [el("dt", {}, "comes from"), el("dd", {}, ORIGIN_WORDS[rule.origin] || rule.origin)],
      rule.reaction && [el("dt", {}, "a live session"), el("dd", {}, REACTION_WORDS[rule.reaction] || rule.reaction)],
      el("dt", {}, "broken"), el("dd", {}, many(rule.count, "time"), rule.possible ? `, ${count(rule.possible)} of them only possible` : "")),
    rule.example.length > 0 && [el("h3", {}, "An example: ", rule.story), el("pre", { class: "example", tabindex: "0" }, rule.example.join("\n"))],
    finding && finding.items.length > 0 && el("h3", {}, "First occurrences"),
    finding && el("ul", { class: "items" }, finding.items.map((item) => {
      const node = itemNode(item);
      node.addEventListener("click", () => box.close());
      return node;
    })),
    closeButton(box));
  box.showModal();
}

/** What a cause of stalls means: the page behind the finding, as a rule has one. */
function showCause(cause) {
  const finding = data.findings.find((f) => f.cause === cause);
  const box = byId("rule");
  fill(box,
    el("h2", { id: "rule-name" }, cause),
    el("p", { class: "sentence" }, CAUSE_MEANINGS[cause]),
    el("dl", {},
      el("dt", {}, "what to do"), el("dd", {}, CAUSE_REMEDIES[cause]),
      finding && [el("dt", {}, "found"), el("dd", {}, findingSums(finding) || many(finding.count, "time"))]),
    finding && finding.items.length > 0 && el("h3", {}, "First occurrences"),
    finding && el("ul", { class: "items" }, finding.items.map((item) => {
      const node = itemNode(item);
      node.addEventListener("click", () => box.close());
      return node;
    })),
    closeButton(box));
  box.showModal();
}

function closeButton(box) {
  return el("p", { class: "close" }, el("button", { type: "button", autofocus: true, on: { click: () => box.close() } }, "Close"));
}

const KEYS = [
  ["1 … 6", "go to a part of the report"],
  ["/", "filter the streams"],
  ["Tab", "next control"],
  ["↑ ↓ PgUp PgDn", "move through a table or the lanes"],
  ["Enter", "open a session, choose a stream, show a finding"],
  ["← →", "move in time on the lanes; with Shift ten steps"],
  ["+ − 0", "zoom in, out, whole session (on the lanes)"],
  ["Esc", "clear a filter; on the lanes: whole session, then all streams"],
  ["c", "commands for what is shown, to copy"],
  ["t", "light, dark or the system's colours"],
  ["?", "this list"],
];

function showHelp() {
  const box = byId("help");
  fill(box, el("h2", { id: "help-title" }, "Keys"),
    el("dl", {}, KEYS.map(([keys, what]) => [el("dt", {}, el("kbd", {}, keys)), el("dd", {}, what)])),
    closeButton(box));
  box.showModal();
}
