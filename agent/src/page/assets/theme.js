// Light, dark or the system's colours: applied before the first drawing, stored in this browser.
"use strict";
(() => {
  const order = ["auto", "light", "dark"];
  const read = () => { try { return localStorage.getItem("trunkline-theme"); } catch { return null; } };
  let theme = order.includes(read()) ? read() : "auto";
  const apply = () => {
    document.documentElement.dataset.theme = theme;
    const text = document.getElementById("theme-text");
    if (text) {
      text.textContent = theme;
      document.getElementById("theme").setAttribute("aria-label", `Colours: ${theme}. Press to change.`);
    }
  };
  apply();
  document.addEventListener("DOMContentLoaded", () => {
    apply();
    document.getElementById("theme").addEventListener("click", () => {
      theme = order[(order.indexOf(theme) + 1) % order.length];
      try { localStorage.setItem("trunkline-theme", theme); } catch { /* The choice is then valid for this visit only. */ }
      apply();
    });
  });
})();
