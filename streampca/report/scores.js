// Scores on a canvas: hover, zoom, pan, select, colour. Reads the JSON beside it, and nothing else.
"use strict";
(() => {
  const find = (id) => document.getElementById(id);
  const told = JSON.parse(find("points").textContent);
  const bytes = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const decoded = (one) => {
    const view = new DataView(bytes(one.codes).buffer), out = new Float64Array(told.count);
    for (let i = 0; i < told.count; i++) {
      const code = view.getInt16(2 * i, true);
      out[i] = code === -32768 ? NaN : one.low + ((code + 32767) / 65534) * (one.high - one.low);
    }
    return out;
  };
  const axes = told.axes.map(decoded);
  const labels = told.labels.map((one) => (one.groups ? bytes(one.codes) : decoded(one)));
  const canvas = find("canvas"), context = canvas.getContext("2d"), said = find("said");
  const help = said.textContent, dark = matchMedia("(prefers-color-scheme: dark)");
  const LIGHT = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9"];
  const DARK = ["#4aa3e0", "#E69F00", "#19b58a", "#CC79A7", "#ee7733", "#a6dcff"];
  const HIGH = [[33, 145, 140], [94, 201, 98], [253, 231, 37]];
  const hue = (code) => (code < 24 ? (dark.matches ? DARK : LIGHT)[code % 6] : "#8a8a8a");
  const shades = () => (dark.matches ? [[150, 110, 210], [100, 135, 210]] : [[68, 1, 84], [59, 82, 139]]).concat(HIGH);
  const LEFT = 56, BOTTOM = 36, TOP = 8, RIGHT = 8;
  let SCALE = shades(), width = 0, height = 0, view = null, hovered = -1, chosen = null, drag = null;
  const hidden = new Set();

  for (const [id, start] of [["x", 0], ["y", Math.min(1, axes.length - 1)]]) {
    told.axes.forEach((one, j) => find(id).add(new Option(one.title, j)));
    find(id).value = start;
  }
  find("colour").add(new Option("nothing", -1));
  told.labels.forEach((one, j) => find("colour").add(new Option(one.title, j)));
  find("colour").value = told.labels.length ? 0 : -1;

  const current = () => ({ x: axes[+find("x").value], y: axes[+find("y").value] });
  const label = () => +find("colour").value;
  const ink = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const range = (values) => {
    let low = Infinity, high = -Infinity;
    for (const v of values) if (v === v) { if (v < low) low = v; if (v > high) high = v; }
    if (!(low <= high)) [low, high] = [0, 1];
    const room = (high - low) * 0.05 || 0.5;
    return [low - room, high + room];
  };
  const reset = () => { const { x, y } = current(); view = { x: range(x), y: range(y) }; };
  const toX = (v) => LEFT + ((v - view.x[0]) / (view.x[1] - view.x[0])) * (width - LEFT - RIGHT);
  const toY = (v) => height - BOTTOM - ((v - view.y[0]) / (view.y[1] - view.y[0])) * (height - TOP - BOTTOM);
  const atX = (px) => view.x[0] + ((px - LEFT) / (width - LEFT - RIGHT)) * (view.x[1] - view.x[0]);
  const atY = (py) => view.y[0] + ((height - BOTTOM - py) / (height - TOP - BOTTOM)) * (view.y[1] - view.y[0]);
  const shown = (i) => label() < 0 || !told.labels[label()].groups || !hidden.has(labels[label()][i]);

  const colour = (i) => {
    const j = label();
    if (j < 0) return hue(0);
    const one = told.labels[j], value = labels[j][i];
    if (one.groups) return hue(value);
    if (value !== value) return "#8a8a8a";
    const at = ((value - one.low) / (one.high - one.low || 1)) * 4, k = Math.min(3, Math.floor(at));
    const [from, to] = SCALE.slice(k);
    return `rgb(${from.map((c, d) => Math.round(c + (at - k) * (to[d] - c)))})`;
  };
  const mark = (x, y, r, shape) => {
    context.beginPath();
    if (shape === 1) { context.moveTo(x, y - r); context.lineTo(x + r, y + r); context.lineTo(x - r, y + r); }
    else if (shape === 2) context.rect(x - r, y - r, 2 * r, 2 * r);
    else if (shape === 3) { context.moveTo(x, y - 1.3 * r); context.lineTo(x + r, y); context.lineTo(x, y + 1.3 * r); context.lineTo(x - r, y); }
    else context.arc(x, y, r, 0, 6.2832);
    context.fill();
  };
  const ticks = (low, high) => {
    const rough = (high - low) / 6, unit = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((m) => m * unit).find((m) => m >= rough), out = [];
    for (let v = Math.ceil(low / step) * step; v <= high; v += step) out.push(+v.toPrecision(8));
    return out;
  };
  const frame = () => {
    context.fillStyle = ink("--ink"); context.strokeStyle = ink("--grid");
    context.font = "12px system-ui, sans-serif"; context.textAlign = "center";
    for (const v of ticks(...view.x)) {
      context.beginPath(); context.moveTo(toX(v), TOP); context.lineTo(toX(v), height - BOTTOM); context.stroke();
      context.fillText(+v.toPrecision(4), toX(v), height - BOTTOM + 14);
    }
    context.fillText(told.axes[+find("x").value].title, (LEFT + width) / 2, height - 4);
    context.textAlign = "right";
    for (const v of ticks(...view.y)) {
      context.beginPath(); context.moveTo(LEFT, toY(v)); context.lineTo(width - RIGHT, toY(v)); context.stroke();
      context.fillText(+v.toPrecision(4), LEFT - 5, toY(v) + 4);
    }
    context.save(); context.translate(12, height / 2); context.rotate(-Math.PI / 2); context.textAlign = "center";
    context.fillText(told.axes[+find("y").value].title, 0, 0); context.restore();
  };
  const draw = () => {
    const scale = window.devicePixelRatio || 1;
    width = canvas.clientWidth; height = canvas.clientHeight;
    canvas.width = width * scale; canvas.height = height * scale;
    context.setTransform(scale, 0, 0, scale, 0, 0);
    if (!view) reset();
    SCALE = shades();
    frame();
    context.save(); context.beginPath();
    context.rect(LEFT, TOP, width - LEFT - RIGHT, height - TOP - BOTTOM); context.clip();
    const { x, y } = current(), r = told.count > 5000 ? 1.5 : 3, groups = label() >= 0 && told.labels[label()].groups;
    for (let i = 0; i < told.count; i++) {
      if (!shown(i) || x[i] !== x[i] || y[i] !== y[i]) continue;
      context.globalAlpha = chosen && !chosen.has(i) ? 0.08 : told.count > 5000 ? 0.5 : 0.75;
      context.fillStyle = colour(i);
      mark(toX(x[i]), toY(y[i]), r, groups ? Math.floor(labels[label()][i] / 6) : 0);
    }
    context.globalAlpha = 1; context.strokeStyle = ink("--ink");
    if (hovered >= 0) { context.beginPath(); context.arc(toX(x[hovered]), toY(y[hovered]), 7, 0, 6.2832); context.lineWidth = 2; context.stroke(); context.lineWidth = 1; }
    if (drag && drag.box) { context.setLineDash([4, 3]); context.strokeRect(drag.x, drag.y, drag.to[0] - drag.x, drag.to[1] - drag.y); context.setLineDash([]); }
    context.restore();
  };
  const name = (i) => (told.names ? told.names[i] : "sample " + (told.rows ? told.rows[i] : i + 1));
  const describe = (i) => {
    const parts = [name(i)];
    told.labels.forEach((one, j) => parts.push(`${one.title}: ${one.groups ? one.groups[labels[j][i]] : labels[j][i].toPrecision(4)}`));
    for (const id of ["x", "y"]) { const j = +find(id).value; parts.push(`${told.axes[j].title.split(" ")[0]} ${axes[j][i].toPrecision(4)}`); }
    return parts.join(" · ");
  };
  const nearest = (px, py) => {
    const { x, y } = current(); let best = -1, least = 15 ** 2;
    for (let i = 0; i < told.count; i++) {
      if (!shown(i)) continue;
      const d = (toX(x[i]) - px) ** 2 + (toY(y[i]) - py) ** 2;
      if (d < least) { least = d; best = i; }
    }
    return best;
  };
  const hover = (i) => { hovered = i; if (i >= 0) said.textContent = describe(i); draw(); };
  const zoom = (factor, px = width / 2, py = height / 2) => {
    const x = atX(px), y = atY(py);
    view = { x: view.x.map((v) => x + (v - x) * factor), y: view.y.map((v) => y + (v - y) * factor) };
    draw();
  };
  const pan = (dx, dy) => {
    const sx = ((view.x[1] - view.x[0]) * dx) / (width - LEFT - RIGHT), sy = ((view.y[1] - view.y[0]) * dy) / (height - TOP - BOTTOM);
    view = { x: view.x.map((v) => v - sx), y: view.y.map((v) => v + sy) };
    draw();
  };
  const select = (x0, y0, x1, y1) => {
    const { x, y } = current(), low = [Math.min(x0, x1), Math.min(y0, y1)], high = [Math.max(x0, x1), Math.max(y0, y1)];
    chosen = new Set();
    for (let i = 0; i < told.count; i++) {
      const px = toX(x[i]), py = toY(y[i]);
      if (shown(i) && px >= low[0] && px <= high[0] && py >= low[1] && py <= high[1]) chosen.add(i);
    }
    const first = [...chosen].slice(0, 20).map(name).join(", ");
    said.textContent = chosen.size ? `${chosen.size} selected: ${first}${chosen.size > 20 ? ", …" : ""}` : "nothing selected";
    if (!chosen.size) chosen = null;
    draw();
  };
  const at = (event) => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  canvas.addEventListener("pointerdown", (event) => {
    const [x, y] = at(event);
    drag = { x, y, to: [x, y], box: event.shiftKey || find("select").checked };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = at(event);
    if (!drag) return hover(nearest(x, y));
    if (!drag.box) pan(x - drag.to[0], y - drag.to[1]);
    drag.to = [x, y];
    if (drag.box) draw();
  });
  canvas.addEventListener("pointerup", (event) => {
    const [x, y] = at(event), was = drag; drag = null;
    if (was && was.box) select(was.x, was.y, x, y);
    else if (was && Math.hypot(x - was.x, y - was.y) < 4) hover(nearest(x, y));
  });
  canvas.addEventListener("pointerleave", () => { if (!drag) hover(-1); });
  canvas.addEventListener("wheel", (event) => { event.preventDefault(); zoom(event.deltaY > 0 ? 1.15 : 1 / 1.15, ...at(event)); }, { passive: false });
  const whole = () => { chosen = null; hovered = -1; said.textContent = help; reset(); draw(); };
  canvas.addEventListener("dblclick", whole);
  const KEYS = { "+": () => zoom(0.8), "=": () => zoom(0.8), "-": () => zoom(1.25), 0: whole, Escape: whole, ArrowLeft: () => pan(40, 0), ArrowRight: () => pan(-40, 0), ArrowUp: () => pan(0, 40), ArrowDown: () => pan(0, -40),
    n: () => hover((hovered + 1) % told.count), p: () => hover((hovered + told.count - 1) % told.count) };
  canvas.addEventListener("keydown", (event) => { const act = KEYS[event.key]; if (act) { event.preventDefault(); act(); } });
  find("in").onclick = () => zoom(0.8); find("out").onclick = () => zoom(1.25); find("whole").onclick = whole;
  const legend = () => {
    const one = told.labels[label()], list = find("legend"); list.replaceChildren(); hidden.clear();
    if (one && !one.groups) list.textContent = `from ${one.low.toPrecision(3)} (dark) to ${one.high.toPrecision(3)} (bright)`;
    for (const [code, group] of ((one && one.groups) || []).entries()) {
      const button = document.createElement("button"), dot = document.createElement("span");
      dot.textContent = "●▲■◆"[Math.min(3, Math.floor(code / 6))] + " "; dot.style.color = hue(code);
      button.append(dot, group); button.type = "button"; button.setAttribute("aria-pressed", "true");
      button.onclick = () => { hidden.has(code) ? hidden.delete(code) : hidden.add(code); button.setAttribute("aria-pressed", String(!hidden.has(code))); draw(); };
      list.append(button);
    }
  };
  find("x").onchange = find("y").onchange = whole;
  find("colour").onchange = () => { legend(); draw(); };
  window.addEventListener("resize", draw); window.addEventListener("beforeprint", draw);
  dark.addEventListener("change", () => { legend(); draw(); });
  legend(); draw();
})();
