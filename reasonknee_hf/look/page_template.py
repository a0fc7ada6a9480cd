# ruff: noqa: E501  (a page, not code)
"""The page that `page.py` fills in. Plain HTML, CSS and script in one file; nothing is loaded from anywhere."""

TEMPLATE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
      content="default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<title>@TITLE@</title>
<style>
  body { margin: 1.2rem; font: 15px/1.45 system-ui, sans-serif; color: #1b1b1b; background: #fff; }
  h1 { font-size: 1.15rem; margin: 0 0 .8rem; overflow-wrap: anywhere; }
  h2 { font-size: 1rem; margin: 1rem 0 .1rem; }
  p { margin: 0; max-width: 75rem; white-space: pre-wrap; }
  #planes { display: flex; flex-wrap: wrap; gap: .8rem; align-items: flex-end; }
  figure { margin: 0; }
  figcaption { display: flex; justify-content: space-between; font-variant-numeric: tabular-nums; }
  canvas { display: block; background: #000; }
  input[type=range] { width: 100%; margin: .3rem 0 0; }
  .tools { margin-top: .7rem; display: flex; flex-wrap: wrap; gap: .3rem 1rem; align-items: center; }
  .tools label { display: inline-flex; align-items: center; gap: .35rem; }
  .swatch { width: 1.1rem; height: .25rem; display: inline-block; }
  button { font: inherit; }
</style>
</head>
<body>
<h1>@TITLE@</h1>
<div id="planes"></div>
<div id="tools" class="tools"></div>
@PARAGRAPHS@
<script id="data" type="application/json">@DATA@</script>
<script>
"use strict";
const facts = JSON.parse(document.getElementById("data").textContent);
const [sx, sy, sz] = facts.shape;
const at = facts.start.slice();
const hidden = new Set();
let showBox = true;
let grey, labels;

// A sheet holds slice after slice; a slice has its rows along the third axis and its columns along the second.
function readSheet(url) {
  return new Promise((resolve, reject) => {
    const image = new Image();
    image.onload = () => {
      const canvas = document.createElement("canvas");
      canvas.width = image.width;
      canvas.height = sz;
      const context = canvas.getContext("2d", { willReadFrequently: true });
      const voxels = new Uint8Array(sx * sy * sz);
      for (let first = 0, top = 0; first < sx; first += facts.columns, top += sz) {
        context.drawImage(image, 0, -top);
        const pixels = context.getImageData(0, 0, image.width, sz).data;
        for (let i = first; i < Math.min(first + facts.columns, sx); i++)
          for (let k = 0; k < sz; k++)
            for (let j = 0, from = (k * image.width + (i - first) * sy) * 4; j < sy; j++, from += 4)
              voxels[(i * sy + j) * sz + k] = pixels[from];
      }
      resolve(voxels);
    };
    image.onerror = () => reject(new Error("a picture in this page cannot be read"));
    image.src = url;
  });
}

const steps = [sy * sz, sz, 1];
const colours = new Map(facts.structures.map(s => [s.id, s.colour]));

// Lines between voxels of different labels, one path for each colour, in voxel units.
function outlines(plane) {
  const { axis, rows, columns } = plane;
  const height = facts.shape[rows], width = facts.shape[columns], base = at[axis] * steps[axis];
  const paths = new Map();
  const id = (r, c) => r < 0 || c < 0 || r >= height || c >= width ? 0 : labels[base + r * steps[rows] + c * steps[columns]];
  const add = (number, fromX, fromY, toX, toY) => {
    const colour = colours.get(number);
    if (!colour || hidden.has(number)) return;
    if (!paths.has(colour)) paths.set(colour, new Path2D());
    paths.get(colour).moveTo(fromX, fromY);
    paths.get(colour).lineTo(toX, toY);
  };
  for (let r = 0; r < height; r++)
    for (let c = 0; c < width; c++) {
      const own = id(r, c);
      if (!own) continue;
      if (id(r - 1, c) !== own) add(own, c, r, c + 1, r);
      if (id(r + 1, c) !== own) add(own, c, r + 1, c + 1, r + 1);
      if (id(r, c - 1) !== own) add(own, c, r, c, r + 1);
      if (id(r, c + 1) !== own) add(own, c + 1, r, c + 1, r + 1);
    }
  return paths;
}

function draw(plane) {
  const { axis, rows, columns, canvas } = plane;
  const height = facts.shape[rows], width = facts.shape[columns], base = at[axis] * steps[axis];
  const context = plane.raw.getContext("2d");
  const picture = context.createImageData(width, height);
  let sum = 0;
  for (let r = 0, to = 0; r < height; r++)
    for (let c = 0; c < width; c++, to += 4) {
      const place = base + r * steps[rows] + c * steps[columns];
      sum += grey[place];
      picture.data[to] = picture.data[to + 1] = picture.data[to + 2] = grey[place];
      picture.data[to + 3] = 255;
    }
  context.putImageData(picture, 0, 0);
  const screen = canvas.getContext("2d");
  screen.imageSmoothingEnabled = true;
  screen.drawImage(plane.raw, 0, 0, canvas.width, canvas.height);
  const scaleX = canvas.width / width, scaleY = canvas.height / height;
  if (labels)
    for (const [colour, path] of outlines(plane)) {
      const scaled = new Path2D();
      scaled.addPath(path, new DOMMatrix([scaleX, 0, 0, scaleY, 0, 0]));
      screen.strokeStyle = colour;
      screen.lineWidth = colour === facts.othersColour ? 0.7 : 1.5;
      screen.stroke(scaled);
    }
  const box = facts.box;
  if (box && showBox && box[2 * axis] <= at[axis] && at[axis] <= box[2 * axis + 1]) {
    screen.strokeStyle = facts.boxColour;
    screen.lineWidth = 2;
    screen.strokeRect(box[2 * columns] * scaleX, box[2 * rows] * scaleY,
      (box[2 * columns + 1] + 1 - box[2 * columns]) * scaleX, (box[2 * rows + 1] + 1 - box[2 * rows]) * scaleY);
  }
  screen.fillStyle = "#ffe9a8";
  screen.font = "14px system-ui, sans-serif";
  screen.textAlign = "center";
  screen.textBaseline = "middle";
  const [left, right, top, bottom] = plane.words, w = canvas.width, h = canvas.height;
  for (const [word, x, y] of [[left, 10, h / 2], [right, w - 10, h / 2], [top, w / 2, 12], [bottom, w / 2, h - 12]])
    screen.fillText(word, x, y);
  plane.count.textContent = `${at[axis] + 1} of ${facts.shape[axis]}`;
  canvas.dataset.mean = (sum / (height * width)).toFixed(3);
}

function add(parent, tag, properties = {}) {
  const element = Object.assign(document.createElement(tag), properties);
  parent.append(element);
  return element;
}

function build() {
  const tallest = Math.max(...facts.planes.map(p => facts.shape[p.rows] * facts.spacing[p.rows]));
  for (const plane of facts.planes) {
    const { axis, rows, columns } = plane;
    const figure = add(document.getElementById("planes"), "figure");
    const caption = add(figure, "figcaption");
    add(caption, "span", { textContent: plane.name });
    plane.count = add(caption, "span");
    const millimetre = 440 / tallest;
    plane.canvas = add(figure, "canvas", {
      width: Math.round(facts.shape[columns] * facts.spacing[columns] * millimetre),
      height: Math.round(facts.shape[rows] * facts.spacing[rows] * millimetre),
    });
    plane.raw = document.createElement("canvas");
    plane.raw.width = facts.shape[columns];
    plane.raw.height = facts.shape[rows];
    const slider = add(figure, "input", {
      type: "range", min: 0, max: facts.shape[axis] - 1, value: at[axis], ariaLabel: plane.name + " slice",
    });
    const go = to => {
      at[axis] = Math.min(Math.max(to, 0), facts.shape[axis] - 1);
      slider.value = at[axis];
      draw(plane);
    };
    slider.addEventListener("input", () => go(Number(slider.value)));
    plane.canvas.addEventListener("wheel", event => {
      event.preventDefault();
      go(at[axis] + Math.sign(event.deltaY));
    }, { passive: false });
    plane.go = go;
  }
  const tools = document.getElementById("tools");
  const redraw = () => facts.planes.forEach(draw);
  if (facts.box) {
    const home = add(tools, "button", { type: "button", textContent: "to the box" });
    home.addEventListener("click", () => facts.planes.forEach(p => p.go(facts.start[p.axis])));
    toggle(tools, "box", facts.boxColour, on => { showBox = on; redraw(); });
  }
  const named = facts.structures.filter(s => s.colour !== facts.othersColour);
  const others = facts.structures.filter(s => s.colour === facts.othersColour);
  const list = (parent, structures) => {
    for (const { id, name, colour } of structures)
      toggle(parent, name, colour, on => { on ? hidden.delete(id) : hidden.add(id); redraw(); });
  };
  list(tools, named);
  if (others.length) {
    const more = document.createElement("details");
    tools.after(more);
    add(more, "summary", { textContent: others.length + " other structures" });
    list(add(more, "div", { className: "tools" }), others);
  }
  function toggle(parent, name, colour, change) {
    const label = add(parent, "label");
    const tick = add(label, "input", { type: "checkbox", checked: true });
    add(label, "span", { className: "swatch" }).style.background = colour;
    label.append(name);
    tick.addEventListener("change", () => change(tick.checked));
  }
  redraw();
}

(async () => {
  try {
    grey = await readSheet(facts.grey);
    labels = facts.labels ? await readSheet(facts.labels) : null;
    build();
    document.body.dataset.state = "ready";
  } catch (error) {
    document.body.dataset.state = "failed";
    document.getElementById("planes").textContent = String(error);
  }
})();
</script>
</body>
</html>
"""
