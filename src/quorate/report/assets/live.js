"use strict";
// Replaces each part of the page after the seconds that it names, until it names none; open parts stay open.
const note = document.getElementById("connection");
function nodes(part) {
  const counts = {};
  return [...part.querySelectorAll("details, input")].map(node => {
    const section = node.closest("section")?.id ?? "";
    counts[section] = (counts[section] ?? 0) + 1;
    return [section + counts[section], node, node.tagName === "INPUT" ? "checked" : "open"];
  });
}
async function refresh(name, seconds) {
  const part = document.getElementById(name);
  if (part.dataset.next === undefined) return;
  await new Promise(done => setTimeout(done, 1000 * (seconds ?? part.dataset.next)));
  try {
    const answer = await fetch(name, { cache: "no-store" });
    if (!answer.ok) throw new Error(answer.status);
    const text = await answer.text(), states = Object.fromEntries(nodes(part).map(([key, node, state]) => [key, node[state]]));
    part.outerHTML = text;
    nodes(document.getElementById(name)).forEach(([key, node, state]) => { node[state] = states[key] ?? node[state]; });
    note.hidden = true;
    refresh(name);
  } catch {
    note.hidden = false;
    refresh(name, Math.min(2 * (seconds ?? 1), 15));
  }
}
refresh("state");
refresh("sections");
