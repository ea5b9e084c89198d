"use strict";
(() => {
  const { traces, policies } = JSON.parse(document.getElementById("data").textContent);
  const PALETTE = [
    "#2f6be0", "#e07b1a", "#199a68", "#c9405a", "#8457d6", "#0f9cb8", "#b98a00", "#7c8591", "#d0579b", "#6a9a1f",
  ];
  const OURS = (policy) => policy.startsWith("ymir");
  const ordered = [...policies].sort((a, b) => OURS(b) - OURS(a));
  const colour = new Map(ordered.map((policy, k) => [policy, PALETTE[k % PALETTE.length]]));
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  // plotly reads a subset of HTML in its texts
  const plain = (text) => String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
  const hours = (seconds) => seconds / 3600;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  let current = 0;

  const alpha = (hex, a) => {
    const n = parseInt(hex.slice(1), 16);
    return `rgba(${n >> 16}, ${(n >> 8) & 255}, ${n & 255}, ${a})`;
  };
  const axis = ({ title, ...more }) => ({
    gridcolor: css("--line"), zerolinecolor: css("--line"), linecolor: css("--line"), automargin: true,
    title: { text: title || "", font: { size: 12, color: css("--muted") } }, ...more,
  });
  const decades = [-5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6].flatMap((e) => [1, 2, 5].map((d) => Number(`${d}e${e}`)));
  const logarithmic = { type: "log", tickmode: "array", tickvals: decades, ticktext: decades.map(String) };
  const layout = (more) => ({
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    font: { family: "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', Arial, sans-serif", size: 12, color: css("--ink") },
    margin: { l: 8, r: 12, t: 8, b: 8 }, showlegend: false, hovermode: "closest",
    hoverlabel: { bgcolor: css("--surface"), bordercolor: css("--line"), font: { color: css("--ink") } },
    ...more,
  });
  const CONFIG = { displaylogo: false, responsive: true, displayModeBar: false };
  const LEGEND = { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 12 }, itemwidth: 30 };
  const draw = (id, data, more) => Plotly.react(id, data, layout(more), CONFIG);
  const empty = (id, text) => draw(id, [], {
    xaxis: { visible: false }, yaxis: { visible: false },
    annotations: [{ text: plain(text), showarrow: false, font: { color: css("--muted"), size: 13 } }],
  });
  const line = (policy) => ({ color: colour.get(policy), width: OURS(policy) ? 2.6 : 1.7 });
  // ours are drawn last, on top
  const layered = (runs) => [...runs].sort((a, b) => OURS(a.policy) - OURS(b.policy));

  const cdf = (trace) => {
    const x = trace.grid.map(hours), data = [];
    for (const run of layered(trace.runs)) {
      if (run.cdf.low) {
        data.push({
          x: [...x, ...[...x].reverse()], y: [...run.cdf.high, ...[...run.cdf.low].reverse()], type: "scatter",
          mode: "lines", line: { width: 0 }, fill: "toself", fillcolor: alpha(colour.get(run.policy), 0.13),
          hoverinfo: "skip", showlegend: false, legendgroup: run.policy,
        });
      }
      data.push({
        x, y: run.cdf.share, type: "scatter", mode: "lines", name: plain(run.policy), line: line(run.policy),
        legendgroup: run.policy, hovertemplate: "%{y:.1%} within %{x:.3g} h<extra>%{fullData.name}</extra>",
      });
    }
    draw("cdf", data, {
      xaxis: axis({ ...logarithmic, title: "hours since submission" }),
      yaxis: axis({ tickformat: ".0%", range: [0, 1.02] }), showlegend: true, legend: LEGEND,
    });
  };

  const bound = (trace) => {
    const runs = trace.runs.filter((run) => run.row.mean_jct_s !== null)
      .sort((a, b) => b.row.mean_jct_s - a.row.mean_jct_s);
    if (!runs.length) return empty("bound", "No job finished.");
    const best = trace.bound && trace.bound.mean;
    const data = [{
      type: "bar", orientation: "h", y: runs.map((run) => plain(run.policy)), x: runs.map((run) => hours(run.row.mean_jct_s)),
      marker: { color: runs.map((run) => alpha(colour.get(run.policy), OURS(run.policy) ? 1 : 0.72)) },
      error_x: {
        type: "data", symmetric: false, color: css("--ink"), thickness: 1.2, width: 4,
        array: runs.map((run) => run.mean_interval ? hours(run.mean_interval[1] - run.row.mean_jct_s) : 0),
        arrayminus: runs.map((run) => run.mean_interval ? hours(run.row.mean_jct_s - Math.max(0, run.mean_interval[0])) : 0),
        visible: runs.some((run) => run.mean_interval),
      },
      hovertemplate: "%{y}: %{x:.3g} h<extra></extra>",
    }];
    const shapes = [];
    const annotations = runs.map((run) => {
      const mean = `${hours(run.row.mean_jct_s).toPrecision(3)} h`;
      return {
        x: 1, xref: "paper", xanchor: "right", y: plain(run.policy), yref: "y", showarrow: false,
        text: best ? `${mean} · ${(run.row.mean_jct_s / best).toPrecision(3)} ×` : mean,
      };
    });
    if (trace.bound) {
      const names = { fastest: "each alone", shortest_first: "one machine", slot_prices: "slot prices" };
      for (const [key, name] of Object.entries(names)) {
        const value = trace.bound[key];
        if (value === null || value === undefined) continue;
        const top = value === best;
        shapes.push({
          type: "line", xref: "x", yref: "paper", x0: hours(value), x1: hours(value), y0: 0, y1: 1,
          line: { color: top ? css("--bad") : css("--muted"), width: top ? 2 : 1, dash: top ? "solid" : "dot" },
        });
        if (top) {
          annotations.push({
            x: hours(value), xref: "x", y: 1, yref: "paper", yanchor: "bottom", showarrow: false,
            text: `bound (${name}) ${hours(value).toPrecision(3)} h`, font: { size: 12, color: css("--bad") },
          });
        }
      }
    }
    draw("bound", data, {
      xaxis: axis({ title: "hours", rangemode: "tozero", domain: [0, 0.76] }), yaxis: axis({}), shapes, annotations,
      margin: { l: 8, r: 16, t: 28, b: 8 }, bargap: 0.35,
    });
  };

  const overTime = (id, key, trace, more) => {
    const data = [];
    for (const run of layered(trace.runs)) {
      const series = run.over[key];
      if (!series) continue;
      data.push({
        x: series.t.map(hours), y: series.v, type: "scatter", mode: "lines", name: plain(run.policy),
        line: { ...line(run.policy), shape: "hv", width: OURS(run.policy) ? 2 : 1.2 }, opacity: OURS(run.policy) ? 1 : 0.75,
        hovertemplate: `%{y:${more.tickformat || ".3g"}} at %{x:.2f} h<extra>%{fullData.name}</extra>`,
      });
    }
    if (!data.length) return empty(id, "Nothing was recorded over time.");
    draw(id, data, {
      xaxis: axis({ title: "hours" }), yaxis: axis({ rangemode: "tozero", ...more }), showlegend: true, legend: LEGEND,
    });
  };

  const fairness = (trace) => {
    const runs = trace.runs.filter((run) => run.rho).sort((a, b) => b.rho.mean - a.rho.mean);
    if (!runs.length) return empty("fairness", "No job finished.");
    const data = runs.map((run) => ({
      type: "box", orientation: "h", name: plain(run.policy), y: [plain(run.policy)], q1: [run.rho.q1], median: [run.rho.median], q3: [run.rho.q3],
      lowerfence: [run.rho.p5], upperfence: [run.rho.p95], mean: [run.rho.mean], boxpoints: false,
      line: { color: colour.get(run.policy), width: 1.6 }, fillcolor: alpha(colour.get(run.policy), 0.25), boxmean: true,
      hoverinfo: "x+name",
    }));
    data.push({
      type: "scatter", mode: "markers", x: runs.map((run) => run.rho.max), y: runs.map((run) => plain(run.policy)),
      marker: { symbol: "line-ns-open", size: 12, color: runs.map((run) => colour.get(run.policy)), line: { width: 2 } },
      hovertemplate: "largest rho %{x:.3g}<extra>%{y}</extra>",
    });
    draw("fairness", data, {
      xaxis: axis({ ...logarithmic, title: "rho: box 25–75 %, whiskers 5–95 %, dashed mean, tick: largest" }),
      yaxis: axis({}),
      shapes: [{ type: "line", x0: 1, x1: 1, y0: 0, y1: 1, yref: "paper", line: { color: css("--muted"), width: 1, dash: "dot" } }],
    });
  };

  const select = document.getElementById("policy");
  const side = document.getElementById("why");
  const first = [...side.childNodes].map((node) => node.cloneNode(true));

  const hue = (group) => (25 + group * 137.508) % 360;
  const shade = (group) => {
    const h = hue(group) / 360, l = dark.matches ? 0.5 : 0.72, s = dark.matches ? 0.4 : 0.55;
    const f = (n) => {
      const k = (n + h * 12) % 12;
      return Math.round(255 * (l - s * Math.min(l, 1 - l) * Math.max(-1, Math.min(k - 3, 9 - k, 1))));
    };
    return `rgb(${f(0)}, ${f(8)}, ${f(4)})`;
  };

  const gantt = (run) => {
    side.replaceChildren(...first.map((node) => node.cloneNode(true)));
    const dropped = document.getElementById("dropped");
    dropped.textContent = "";
    if (!run || !run.gpus) {
      document.getElementById("gpus").style.height = "160px";
      return empty("gpus", "The GPUs were not recorded over time.");
    }
    const gpus = run.gpus;
    if (gpus.dropped) dropped.textContent = `the ${gpus.dropped} shortest stretches are not drawn`;
    const offset = [];
    let rows = 0;
    for (const [, size] of gpus.nodes) {
      offset.push(rows);
      rows += size + 0.6;
    }
    const bar = () => ({
      type: "bar", orientation: "h", base: [], x: [], y: [], width: [], customdata: [],
      marker: { color: [], line: { width: 0.6, color: css("--surface") } },
    });
    const held = { ...bar(), hovertemplate: [], text: [] };
    held.marker.pattern = { shape: [], fgcolor: dark.matches ? "rgba(0,0,0,0.55)" : "rgba(255,255,255,0.85)", size: 7, solidity: 0.35, fillmode: "overlay" };
    const starts = { ...bar(), hoverinfo: "skip" };
    gpus.segments.forEach((segment, index) => {
      const [group, mode, jobs, start, ready, end, , pieces] = segment;
      const names = jobs.slice(0, 4).map((j) => plain(gpus.jobs[j][0])).join(", ") + (jobs.length > 4 ? " …" : "");
      for (const [node, gpu, width] of pieces) {
        const y = offset[node] + gpu + width / 2;
        held.base.push(hours(start)); held.x.push(hours(end - start)); held.y.push(y); held.width.push(width * 0.94);
        held.customdata.push(index); held.marker.color.push(shade(group));
        held.marker.pattern.shape.push(jobs.length > 1 || mode !== "solo" ? "/" : "");
        held.hovertemplate.push(`${names}<br>${plain(mode)}, ${ymirWhy.span(end - start)} from ${ymirWhy.span(start)}<extra>group ${group}</extra>`);
        if (ready > start) {
          starts.base.push(hours(start)); starts.x.push(hours(ready - start)); starts.y.push(y); starts.width.push(width * 0.94);
          starts.customdata.push(index); starts.marker.color.push(dark.matches ? "rgba(255,255,255,0.35)" : "rgba(0,0,0,0.42)");
        }
      }
    });
    delete held.text;
    const chart = document.getElementById("gpus");
    chart.style.height = `${Math.max(220, Math.min(1100, 90 + rows * (gpus.nodes.length > 40 ? 6 : 14)))}px`;
    draw("gpus", [held, starts], {
      barmode: "overlay", bargap: 0, dragmode: "zoom",
      xaxis: axis({ title: "hours (drag to zoom, double-click to reset)" }),
      yaxis: axis({
        tickvals: gpus.nodes.map(([, size], k) => offset[k] + size / 2), ticktext: gpus.nodes.map(([name]) => plain(name)),
        range: [rows, -0.6], fixedrange: true, showgrid: false, zeroline: false,
      }),
    }).then((plot) => {
      plot.removeAllListeners("plotly_click");
      plot.on("plotly_click", (event) => show(gpus, event.points[0].customdata));
    });
  };

  const paragraphs = (parent, title, lines) => {
    if (!lines.length) return;
    const head = document.createElement("h4");
    head.textContent = title;
    const list = document.createElement("ul");
    for (const text of lines) {
      const item = document.createElement("li");
      item.textContent = text;
      list.append(item);
    }
    parent.append(head, list);
  };

  const show = (gpus, index) => {
    const told = ymirWhy.explain(gpus, index);
    const head = document.createElement("h3");
    head.textContent = told.title;
    side.replaceChildren(head);
    const facts = document.createElement("p");
    facts.textContent = told.facts.join("; ");
    side.append(facts);
    paragraphs(side, "Why it began", told.began);
    paragraphs(side, "Why it ended", told.ended);
    for (const [name, lines] of told.jobs) paragraphs(side, `Job ${name}`, lines);
    side.scrollTop = 0;
  };

  const render = () => {
    const trace = traces[current];
    cdf(trace);
    bound(trace);
    overTime("queue", "queue", trace, {});
    overTime("utilisation", "utilisation", trace, { tickformat: ".0%", range: [0, 1.02] });
    overTime("fragmentation", "fragmentation", trace, { tickformat: ".0%", range: [0, 1.02] });
    fairness(trace);
    const chosen = select.value;
    select.replaceChildren(...trace.runs.map((run) => new Option(run.policy, run.policy)));
    const ours = trace.runs.find((run) => OURS(run.policy) && run.gpus) || trace.runs.find((run) => run.gpus) || trace.runs[0];
    select.value = trace.runs.some((run) => run.policy === chosen) ? chosen : ours.policy;
    gantt(trace.runs.find((run) => run.policy === select.value));
    for (const section of document.querySelectorAll("section.trace")) section.hidden = Number(section.dataset.trace) !== current;
    for (const tab of document.querySelectorAll(".tab")) tab.setAttribute("aria-selected", String(Number(tab.dataset.trace) === current));
  };

  select.addEventListener("change", () => gantt(traces[current].runs.find((run) => run.policy === select.value)));
  for (const tab of document.querySelectorAll(".tab")) {
    tab.addEventListener("click", () => {
      current = Number(tab.dataset.trace);
      render();
    });
  }
  for (const dot of document.querySelectorAll(".dot")) dot.style.background = colour.get(dot.dataset.policy);
  dark.addEventListener("change", render);
  render();
  window.ymirShow = (index) => show(traces[current].runs.find((run) => run.policy === select.value).gpus, index);
  document.documentElement.dataset.ready = "yes";
})();
