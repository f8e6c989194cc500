"use strict";
// Fetches what changes and puts it in place; a page whose server has ended keeps what it shows, and says so.
const state = document.getElementById("state"), note = document.getElementById("connection");
let every = 1000;
async function look() {
  try {
    const answer = await fetch("state", { cache: "no-store" });
    if (!answer.ok) throw new Error(String(answer.status));
    const open = [...state.querySelectorAll("details")].map(one => one.open);
    state.innerHTML = await answer.text();
    [...state.querySelectorAll("details")].forEach((one, place) => { one.open = open[place] ?? false; });
    note.hidden = true;
    if (state.querySelector("[data-ended]")) return;
    every = 1000;
  } catch {
    note.hidden = false;
    every = Math.min(2 * every, 15000);
  }
  setTimeout(look, every);
}
if (!state.querySelector("[data-ended]")) setTimeout(look, every);
