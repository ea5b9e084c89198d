"use strict";
/* Why a stretch of GPU time began and ended, from what the simulation recorded. */
const ymirWhy = (() => {
  const GROUP = 0, MODE = 1, JOBS = 2, START = 3, READY = 4, END = 5, BY = 6, PIECES = 7, WHY = 8, ENDED_WHY = 9;
  const ID = 0, SUBMITTED = 1, COMPLETED = 3, ALONE = 5;
  const SAME = 0.11;

  const span = (seconds) => {
    const s = Math.max(0, seconds);
    if (s < 99.5) return `${Math.round(s)} s`;
    const minutes = Math.round(s / 60);
    if (minutes < 60) return `${minutes} min`;
    return `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
  };
  const several = (names, most = 4) =>
    names.slice(0, most).join(", ") + (names.length > most ? ` and ${names.length - most} more` : "");
  const overlap = (a, b) =>
    a[PIECES].some(([n, g, w]) => b[PIECES].some(([m, h, v]) => n === m && g < h + v && h < g + w));
  const size = (segment) => segment[PIECES].reduce((sum, piece) => sum + piece[2], 0);
  const label = (gpus, segment) => several(segment[JOBS].map((j) => gpus.jobs[j][ID]), 3);

  const planOf = (rounds, at) => {
    const times = rounds.time_s || [];
    let low = 0, high = times.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (times[middle] <= at + SAME) low = middle + 1; else high = middle;
    }
    return low - 1;
  };

  const causes = (gpus, after, until) => {
    const arrived = [], finished = [];
    for (const job of gpus.jobs) {
      if (job[SUBMITTED] > after + SAME && job[SUBMITTED] <= until + SAME) arrived.push(job[ID]);
      if (job[COMPLETED] > after + SAME && job[COMPLETED] <= until + SAME) finished.push(job[ID]);
    }
    return { arrived, finished };
  };

  const began = (gpus, index, lines) => {
    const segment = gpus.segments[index];
    const same = gpus.segments.filter((s) => s[GROUP] === segment[GROUP] && s[START] < segment[START] - SAME);
    if (same.length) {
      lines.push("Goes on after a member left; the rest of the group kept its GPUs.");
      return;
    }
    const k = planOf(gpus.rounds, segment[START]);
    if (k >= 0) {
      const before = k > 0 ? gpus.rounds.time_s[k - 1] : -Infinity;
      const { arrived, finished } = causes(gpus, before, gpus.rounds.time_s[k]);
      const parts = [];
      if (finished.length) parts.push(`${several(finished, 3)} finished`);
      if (arrived.length) parts.push(`${several(arrived, 3)} arrived`);
      lines.push(parts.length ? `Planned after ${parts.join(" and ")}.` : "Planned at a regular round.");
      const waiting = gpus.rounds.waiting_jobs[k], used = gpus.rounds.used_gpus[k], total = gpus.rounds.total_gpus[k];
      lines.push(`After this plan ${waiting} jobs waited and ${used} of ${total} GPUs were held.`);
      const gap = (gpus.rounds.value_gap || [])[k];
      if (gap !== null && gap !== undefined) lines.push(`The plan's value gap was ${(100 * gap).toPrecision(2)} %.`);
    }
    const released = gpus.segments.filter((s) => s !== segment && Math.abs(s[END] - segment[START]) <= SAME && overlap(s, segment));
    const mine = gpus.segments.find((s) => s !== segment && Math.abs(s[END] - segment[START]) <= SAME
      && s[BY] !== "finished" && s[JOBS].some((j) => segment[JOBS].includes(j)));
    if (mine) {
      lines.push(size(mine) === size(segment)
        ? `Moved: ${label(gpus, mine)} had run on ${size(mine)} GPUs until then (${mine[MODE]}).`
        : `Resized from ${size(mine)} to ${size(segment)} GPUs (${mine[MODE]} until then).`);
    }
    for (const other of released.filter((s) => s !== mine).slice(0, 3)) {
      lines.push(`Took over GPUs of ${label(gpus, other)} (${other[BY]} at that moment).`);
    }
    if (!released.length && !mine) {
      const last = gpus.segments.filter((s) => s[END] < segment[START] && overlap(s, segment)).map((s) => s[END]);
      lines.push(last.length
        ? `Its GPUs had been free for ${span(segment[START] - Math.max(...last))}.`
        : "Its GPUs had not been used before.");
    }
  };

  const ended = (gpus, index, lines) => {
    const segment = gpus.segments[index];
    const next = gpus.segments.filter((s) => s !== segment && Math.abs(s[START] - segment[END]) <= SAME && overlap(s, segment));
    const heirs = next.slice(0, 3).map((s) => `${label(gpus, s)} (${s[MODE]}, ${size(s)} GPUs)`);
    const again = gpus.segments.find((s) => s[START] >= segment[END] - SAME && s !== segment && s[JOBS].some((j) => segment[JOBS].includes(j)));
    switch (segment[BY]) {
      case "finished": lines.push("Ended because the work was done."); break;
      case "member": lines.push("A member finished; the rest of the group went on."); break;
      case "preempted":
        lines.push("Stopped by the next plan.");
        if (again) {
          const pause = again[START] - segment[END];
          lines.push(pause > SAME
            ? `Ran again ${span(pause)} later on ${size(again)} GPUs (${again[MODE]}).`
            : `Went on at once on ${size(again)} GPUs (${again[MODE]}).`);
        }
        break;
      case "failed": lines.push("Stopped by a failure of a node or of the start."); break;
      case "split": lines.push("The merge did not prove itself; the group was split and its cost charged."); break;
      default: lines.push(`Ended: ${segment[BY]}.`);
    }
    if (heirs.length) lines.push(`Its GPUs went on to ${heirs.join("; ")}.`);
  };

  const jobLines = (gpus, segment, j) => {
    const job = gpus.jobs[j];
    if (job.length < 4) return ["not finished"];
    const held = gpus.segments.filter((s) => s[JOBS].includes(j) && s[END] <= segment[START] + SAME);
    const before = held.reduce((sum, s) => sum + s[END] - s[START], 0);
    const lines = [];
    if (job[8]) lines.push(`${job[8]}${job[9] ? ` · ${job[9]}` : ""}, ${job[4]} GPUs requested`);
    else lines.push(`${job[4]} GPUs requested`);
    lines.push(`${span(segment[START] - job[SUBMITTED] - before)} of waiting since its submission, ${held.length ? `stretch ${held.length + 1}` : "first start"}`);
    const took = job[COMPLETED] - job[SUBMITTED];
    lines.push(`completed after ${span(took)}${job[ALONE] ? `, ${(took / job[ALONE]).toPrecision(3)} × its time alone` : ""}`);
    if (job[7]) lines.push(`preempted ${job[7]} times in all`);
    return lines;
  };

  /** Returns {title, facts, began, ended, jobs: [[id, lines]]} of a stretch; texts only. */
  const explain = (gpus, index) => {
    const segment = gpus.segments[index];
    const nodes = segment[PIECES].map(([n, g, w]) => `${gpus.nodes[n][0]}: ${w > 1 ? `${g}–${g + w - 1}` : g}`);
    const facts = [
      `${size(segment)} GPUs (${several(nodes, 6)})`,
      `${span(segment[END] - segment[START])}, from ${span(segment[START])} to ${span(segment[END])} after the first submission`,
    ];
    if (segment[READY] > segment[START]) facts.push(`${span(segment[READY] - segment[START])} of it for the start`);
    const start = [], end = [];
    const own = (text) => (text ? text.split("\n").map((line) => `The plan's reason: ${line}.`) : []);
    start.push(...own(segment[WHY]));
    began(gpus, index, start);
    ended(gpus, index, end);
    end.push(...own(segment[ENDED_WHY]));
    return {
      title: `Group ${segment[GROUP]}, ${segment[MODE]}`,
      facts,
      began: start,
      ended: end,
      jobs: segment[JOBS].map((j) => [gpus.jobs[j][ID], jobLines(gpus, segment, j)]),
    };
  };

  return { explain, span, size };
})();
