// Light and dark colours: the system's setting until the user selects one.

const THEMES = ["auto", "light", "dark"];
const THEME_WORDS = { auto: "as the system", light: "light", dark: "dark" };
const THEME_SIGNS = { auto: "◐", light: "○", dark: "●" };
const systemDark = window.matchMedia("(prefers-color-scheme: dark)");
let theme = "auto";

function applyTheme() {
  const dark = theme === "dark" || (theme === "auto" && systemDark.matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  const button = byId("theme");
  fill(button, el("span", { "aria-hidden": "true" }, `${THEME_SIGNS[theme]} `), theme);
  button.setAttribute("aria-label", `Colours: ${theme}, ${THEME_WORDS[theme]}`);
  changed("theme");
}

function nextTheme() {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  applyTheme();
}

function startTheme() {
  systemDark.addEventListener("change", applyTheme);
  // Paper is white: print in the light colours, and with every list unfolded.
  addEventListener("beforeprint", () => {
    document.documentElement.dataset.theme = "light";
    for (const details of document.querySelectorAll("details")) details.open = true;
    changed("theme");
    paintNow();
  });
  addEventListener("afterprint", applyTheme);
  byId("theme").addEventListener("click", nextTheme);
  applyTheme();
}

/** The value of a CSS colour variable in the current theme. */
function colour(variable) {
  return getComputedStyle(document.documentElement).getPropertyValue(variable).trim();
}
