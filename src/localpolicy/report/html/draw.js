"use strict";
// Draws every chart of the page from its spec.
(() => {
  const specs = JSON.parse(document.getElementById("chart-specs").textContent);
  const anchors = ["right", "top-right", "bottom-right", "left", "top", "bottom", "top-left", "bottom-left"];


  // Names beside points: Vega looks for a free place for each at the width there is, and hides what finds none.
  const makeRoom = (spec) => (vega) => {
    const names = vega.marks.find((mark) => mark.name === "names_marks");
    if (!names) return vega;
    const distances = spec.datasets.points.length > 12 ? [5, 11, 18] : [5, 11, 18, 27, 38, 50];
    const avoid = vega.marks
      .map((mark) => mark.name)
      .filter((name) => /^(points|across|along|dials|floor_words|floor_rule|level_words|level_rule)_/.test(name));
    names.from = { data: "points_marks" };
    names.encode = { enter: { text: { field: "datum.label" }, fill: names.encode.update.fill, fontSize: { value: 12 } } };
    names.transform = [
      { type: "label", sort: { field: "datum.datum.place" }, size: { signal: "[max(width, 1), max(height, 1)]" }, anchor: distances.flatMap(() => anchors), offset: distances.flatMap((far) => anchors.map(() => far)), avoidBaseMark: true, avoidMarks: avoid },
    ];
    vega.marks = [...vega.marks.filter((mark) => mark !== names), names];
    return vega;
  };

  for (const [id, spec] of Object.entries(specs)) {
    const place = document.getElementById(id);
    const actions = { export: { svg: true, png: true }, source: false, compiled: false, editor: false };
    vegaEmbed(place, spec, { renderer: "svg", actions, patch: makeRoom(spec), downloadFileName: id }).then(
      () => place.classList.add("drawn"),
      (error) => {
        console.error(`${id}: ${error.message}`);
        place.textContent = "This chart could not be drawn; its numbers are in the tables.";
      },
    );
  }

  // Charts take their width when drawn and when the window changes; a page that was drawn unseen had none.
  let width = 0;
  new ResizeObserver(([main]) => {
    if (main.contentRect.width !== width) window.dispatchEvent(new Event("resize"));
    width = main.contentRect.width;
  }).observe(document.querySelector("main"));

  // On paper nothing can be opened.
  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details.facts:not([open])")];
    for (const block of opened) block.open = true;
  });
  window.addEventListener("afterprint", () => {
    for (const block of opened) block.open = false;
  });
})();
