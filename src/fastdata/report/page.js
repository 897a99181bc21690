"use strict";
// The theme: that of the system until the button is pressed. Browsers may forbid storage for files.
const root = document.documentElement;
const saved = { get() { try { return localStorage.getItem("fastdata-theme"); } catch { return null; } },
  set(value) { try { localStorage.setItem("fastdata-theme", value); } catch { /* it lasts as long as the page */ } } };
if (saved.get() === "dark" || saved.get() === "light") root.dataset.theme = saved.get();
document.getElementById("theme").addEventListener("click", () => {
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  saved.set(root.dataset.theme);
});

// The section in view is marked in the navigation.
const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) {
    for (const link of links.values()) link.removeAttribute("aria-current");
    const link = links.get(entry.target.id);
    link.setAttribute("aria-current", "true");
    link.parentElement.scrollTo({ left: link.offsetLeft - 60 });
  }
}, { rootMargin: "-10% 0px -75% 0px" });
for (const id of links.keys()) seen.observe(document.getElementById(id));

// A picture opens in a dialog; the arrow keys go on.
const dialog = document.querySelector("dialog");
const samples = [...document.querySelectorAll("main .sample")];
let place = 0;
function show(index) {
  place = (index + samples.length) % samples.length;
  const copy = samples[place].cloneNode(true);
  const figure = document.createElement("div");
  figure.className = "sample";
  figure.style.cssText = samples[place].style.cssText;
  figure.append(...copy.childNodes);
  dialog.querySelector(".shown").replaceChildren(figure);
  if (!dialog.open) dialog.showModal();
}
samples.forEach((sample, index) => sample.addEventListener("click", () => show(index)));
dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
dialog.addEventListener("close", () => samples[place].focus());
dialog.addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (step) { event.preventDefault(); show(place + step); }
});
for (const button of dialog.querySelectorAll("[data-step]")) button.addEventListener("click", () => show(place + Number(button.dataset.step)));
dialog.querySelector("[data-close]").addEventListener("click", () => dialog.close());

// A search field hides what does not have the text in its data-text.
for (const field of document.querySelectorAll("input[type=search]")) {
  const entries = [...field.closest("section").querySelectorAll("[data-text]")];
  field.addEventListener("input", () => {
    const text = field.value.trim().toLowerCase();
    for (const entry of entries) entry.hidden = !entry.dataset.text.toLowerCase().includes(text);
  });
}
