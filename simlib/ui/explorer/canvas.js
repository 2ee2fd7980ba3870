// SPDX-License-Identifier: BSD-3-Clause
// Draws the explorer's figures with one Plotly, saves files, keeps the page's URL, and reports when the kernel no longer answers.
// The page has loaded Plotly (simlib/ui/explorer/jupyter); otherwise the kernel sends it.

const CONFIG = { displaylogo: false, responsive: true, showSendToCloud: false, modeBarButtonsToRemove: ["lasso2d", "select2d"] };
const PULSE_MS = 5000;
const LATE_MS = 20000;

function save(name, blob) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

function download(key) {
  return {
    name: "save as SVG",
    icon: globalThis.Plotly.Icons.disk,
    click: (gd) => globalThis.Plotly.downloadImage(gd, { format: "svg", filename: key }),
  };
}

function fetched(model) {
  return new Promise((done) => {
    function take(message, buffers) {
      if (message.kind !== "plotly") return;
      model.off("msg:custom", take);
      const script = document.createElement("script");
      script.src = URL.createObjectURL(new Blob(buffers, { type: "text/javascript" }));
      script.onload = () => done(globalThis.Plotly);
      document.head.append(script);
    }
    model.on("msg:custom", take);
    model.send({ kind: "plotly" });
  });
}

async function render({ model, el }) {
  const plotly = globalThis.Plotly ?? (await fetched(model));
  const grid = document.createElement("div");
  grid.className = "simlib-figures";
  const notice = document.createElement("div");
  notice.className = "simlib-notice";
  notice.setAttribute("role", "alert");
  notice.hidden = true;
  el.append(notice, grid);
  const places = new Map();
  const drawn = new Map();

  function place(key) {
    if (!places.has(key)) {
      const box = document.createElement("div");
      box.className = "simlib-figure";
      box.dataset.figure = key;
      grid.append(box);
      places.set(key, box);
    }
    return places.get(key);
  }

  let queue = Promise.resolve();
  let reported = 0;
  function draw() {
    queue = queue.then(async () => {
      const figures = model.get("figures");
      const stamp = model.get("stamp");
      for (const [key, text] of Object.entries(figures)) {
        if (drawn.get(key) === text) continue;
        const { data, layout } = JSON.parse(text);
        delete layout.height; // the style sheet sets the height
        const box = place(key);
        if (box.layout) {
          await plotly.react(box, data, layout); // with a configuration, Plotly would rebuild the figure
        } else {
          await plotly.newPlot(box, data, layout, { ...CONFIG, modeBarButtonsToAdd: [download(key)] });
        }
        drawn.set(key, text);
      }
      places.forEach((box, key) => box.classList.toggle("simlib-stale", (stamp.stale || []).includes(key)));
      // Tests wait for these: the answer that is on the screen.
      grid.dataset.generation = stamp.generation;
      grid.dataset.part = stamp.part;
      performance.mark("simlib-drawn", { detail: stamp });
      if (reported < stamp.generation) {
        reported = stamp.generation;
        model.send({ kind: "drawn", generation: reported });
      }
    });
  }

  function address() {
    const query = model.get("query");
    if (query && location.pathname.includes("/voila/render/")) {
      history.replaceState(null, "", location.pathname + "?" + query + location.hash);
    }
  }

  let heard = Date.now();
  const pulse = setInterval(() => {
    if (Date.now() - heard > LATE_MS) {
      notice.textContent =
        "The kernel no longer answers, so the figures are not updated. Reload the page; its URL has the state.";
      notice.hidden = false;
    }
    try {
      model.send({ kind: "pulse" });
    } catch (error) {
      heard = Math.min(heard, Date.now() - LATE_MS - 1);
    }
  }, PULSE_MS);

  async function onMessage(message, buffers) {
    heard = Date.now();
    notice.hidden = true;
    if (message.kind === "file") {
      save(message.name, new Blob(buffers, { type: message.type }));
    } else if (message.kind === "image") {
      const box = places.get(message.figure);
      const url = await plotly.toImage(box, { format: message.format, width: 1000, height: 560, scale: message.format === "png" ? 2 : 1 });
      save(message.name, await (await fetch(url)).blob());
    }
  }

  model.on("change:figures", draw);
  model.on("change:stamp", draw);
  model.on("change:query", address);
  model.on("msg:custom", onMessage);
  const watch = new ResizeObserver(() => places.forEach((box) => box.layout && plotly.Plots.resize(box)));
  watch.observe(grid);
  draw();
  address();
  return () => {
    clearInterval(pulse);
    watch.disconnect();
  };
}

export default { render };
