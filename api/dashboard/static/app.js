// Draws the plots, shows the fields of the chosen recipe, and asks before what cannot be undone.
"use strict";

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

const fromZero = (plot, least, most) => [0, Math.max(most * 1.1, 1)];

function draw(box) {
  if (box.dataset.drawn) return;
  box.dataset.drawn = "yes";
  const points = JSON.parse(box.dataset.points);
  const axis = { stroke: colour("--soft"), grid: { stroke: colour("--line") }, ticks: { stroke: colour("--line") } };
  const line = (label, scale, name) => ({ label, scale, stroke: colour(name), width: 2, points: { show: points.at.length < 3 } });
  new uPlot({
    width: box.clientWidth, height: 220,
    scales: { x: { time: true }, rows: { range: fromZero }, tokens: { range: fromZero } },
    series: [{ label: "Time" }, line("rows/s", "rows", "--live"), line("tokens/s", "tokens", "--warn")],
    axes: [axis, { ...axis, scale: "rows", label: "rows/s", size: 60 }, { ...axis, scale: "tokens", label: "tokens/s", side: 1, size: 70, grid: { show: false } }],
  }, [points.at, points.rows, points.tokens], box);
}

function settle(root) {
  root.querySelectorAll(".plot[data-points]").forEach(draw);
  root.querySelectorAll("select[data-recipe]").forEach((select) => {
    const show = () => document.querySelectorAll("[data-for]").forEach((part) => {
      part.hidden = !part.dataset.for.split(" ").includes(select.value);
    });
    select.addEventListener("change", show);
    show();
  });
}

document.addEventListener("DOMContentLoaded", () => settle(document));
document.addEventListener("htmx:afterSwap", () => settle(document));
document.addEventListener("submit", (event) => {
  const question = event.target.dataset.ask;
  if (question && !window.confirm(question)) event.preventDefault();
});
