"use strict";
(() => {
  const panel = document.getElementById("panel");
  const search = document.getElementById("search");
  const items = [...document.querySelectorAll(".item")];
  const first = panel.cloneNode(true);
  let chosen = null;
  let reason = null;

  const clear = () => {
    document.body.classList.remove("picking");
    for (const cell of document.querySelectorAll(".gpu.sel")) cell.classList.remove("sel");
    panel.replaceChildren(...first.cloneNode(true).childNodes);
    chosen = null;
  };

  const choose = (group) => {
    const again = chosen === group;
    clear();
    if (again) return;
    chosen = group;
    document.body.classList.add("picking");
    for (const cell of document.querySelectorAll(`.gpu[data-g="${CSS.escape(group)}"]`)) cell.classList.add("sel");
    const item = document.getElementById(`g${group}`);
    const close = document.createElement("button");
    close.type = "button";
    close.className = "chip close";
    close.textContent = "Close";
    close.addEventListener("click", clear);
    const head = item.querySelector("summary").cloneNode(true);
    const line = document.createElement("div");
    line.className = head.className;
    line.append(...head.childNodes);
    panel.replaceChildren(close, line, item.querySelector(".body").cloneNode(true));
    panel.scrollTop = 0;
  };

  for (const cell of document.querySelectorAll(".map .gpu[data-g], .swatch[data-g]")) {
    cell.addEventListener("click", (event) => {
      event.preventDefault();
      choose(cell.dataset.g);
    });
  }
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") clear();
  });

  const filter = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const item of items) {
      item.text ??= item.querySelector("summary").textContent.toLowerCase();
      const fits = words.every((word) => item.text.includes(word));
      const because = reason === null || item.dataset.reason === undefined || item.dataset.reason === reason;
      item.hidden = !(fits && because);
    }
  };
  search.addEventListener("input", filter);
  const chips = [...document.querySelectorAll(".chip[data-reason]")];
  for (const chip of chips) {
    chip.addEventListener("click", () => {
      reason = reason === chip.dataset.reason ? null : chip.dataset.reason;
      for (const other of chips) other.setAttribute("aria-pressed", String(other.dataset.reason === reason));
      filter();
    });
  }

  const openTarget = () => {
    const target = /^#g\d+$/.test(location.hash) && document.querySelector(location.hash);
    if (target) target.open = true;
  };
  window.addEventListener("hashchange", openTarget);
  openTarget();
  document.documentElement.dataset.ready = "yes";
})();
