// Commands for what is shown: to copy into a shell that has the captures.

/** One word for a POSIX shell: quoted, so that nothing in it is interpreted. */
function shellWord(text) {
  return /^[A-Za-z0-9_.\/:=@%+,-]+$/.test(text) && !text.startsWith("-") ? text : `'${text.replaceAll("'", "'\\''")}'`;
}

/** The captures of a session as arguments; a word to replace where the page has not all of them. */
function captureWords(session) {
  const whole = session.captures.length > 0 && !session.moreCaptures
    && session.captures.every((file) => !file.includes("…") && !file.includes("\\"));
  if (!whole) return "CAPTURES";
  return session.captures.map((file) => shellWord(file.startsWith("-") ? `./${file}` : file)).join(" ");
}

function commandsFor(session, stream) {
  const files = captureWords(session);
  const id = shellWord(session.id);
  const only = `--session ${id}`;
  const made = [];
  if (stream) {
    const key = shellWord(stream.key);
    made.push(["the frames of this stream", `polymux frames ${files} ${only} --stream ${key}`]);
    made.push(["the bytes the dialer sent on it", `polymux follow ${files} ${only} --stream ${key} --sender dialer`]);
    made.push(["its stalls", `polymux sql ${files} ${shellWord(`select * from stalls where session_id = '${session.id}' and stream = '${stream.key}'`)}`]);
  } else {
    made.push(["its streams, worst first", `polymux ls ${files} ${only}`]);
    made.push(["its findings", `polymux check ${files} ${only}`]);
    made.push(["its frames", `polymux frames ${files} ${only}`]);
    made.push(["its longest stalls", `polymux sql ${files} ${shellWord(`select stream, cause, duration_us, detail from stalls where session_id = '${session.id}' order by duration_us desc limit 20`)}`]);
  }
  if (session.captures.length === 1 && !session.moreCaptures) { // it takes one capture
    made.push(["every finding as a comment, for Wireshark", `polymux annotate ${files} -o annotated.pcapng`]);
  }
  return made;
}

function startCommands() {
  watch((what) => {
    if (what === "session" || what === "stream") showCommands();
  });
}

function showCommands() {
  const session = data.sessions[view.session];
  const stream = view.detail ? view.detail.streams[view.stream] : undefined;
  fill(byId("commands-title"), stream ? ["Commands for ", name(stream.key), " of this session"] : "Commands for this session");
  fill(byId("commands-list"), commandsFor(session, stream).map(([what, command]) => {
    const code = el("code", { tabindex: "0" }, command);
    return el("li", {}, el("span", { class: "dim" }, what), code, copyButton(code, command, what));
  }));
}

function copyButton(code, command, what) {
  const button = el("button", { type: "button", class: "copy", "aria-label": `Copy the command for ${what}` }, "Copy");
  button.addEventListener("click", async () => {
    let done = false;
    try {
      await navigator.clipboard.writeText(command);
      done = true;
    } catch {
      getSelection().selectAllChildren(code);
      done = document.execCommand("copy");
    }
    fill(button, done ? "Copied" : "Selected");
    fill(byId("said"), done ? "the command was copied" : "the command is selected: copy it with the keys of your system");
    setTimeout(() => fill(button, "Copy"), 2000);
  });
  return button;
}
