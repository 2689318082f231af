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
  fill(button, `${THEME_SIGNS[theme]} ${theme}`);
  button.setAttribute("aria-label", `Colours: ${THEME_WORDS[theme]}`);
  changed("theme");
}

function nextTheme() {
  theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
  applyTheme();
}

function startTheme() {
  systemDark.addEventListener("change", applyTheme);
  byId("theme").addEventListener("click", nextTheme);
  applyTheme();
}

/** The value of a CSS colour variable in the current theme. */
function colour(variable) {
  return getComputedStyle(document.documentElement).getPropertyValue(variable).trim();
}
