// Light, dark, or as the system is: applied before anything is drawn, kept in this browser.
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
      document.getElementById("theme").setAttribute("aria-label", `Colours: ${theme}. Press for the next.`);
    }
  };
  apply();
  document.addEventListener("DOMContentLoaded", () => {
    apply();
    document.getElementById("theme").addEventListener("click", () => {
      theme = order[(order.indexOf(theme) + 1) % order.length];
      try { localStorage.setItem("trunkline-theme", theme); } catch { /* It holds for this visit then. */ }
      apply();
    });
  });
})();
