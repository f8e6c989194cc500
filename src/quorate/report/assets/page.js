"use strict";
// The page works without this: it only adds a button that copies the command.
for (const button of document.querySelectorAll("button[data-copy]")) {
  const source = document.getElementById(button.dataset.copy);
  const select = () => getSelection().selectAllChildren(source);
  button.hidden = false;
  button.addEventListener("click", () => {
    const written = navigator.clipboard ? navigator.clipboard.writeText(source.textContent) : Promise.reject();
    written.then(() => { button.textContent = "Copied"; }, () => { select(); button.textContent = "Selected"; });
  });
}
