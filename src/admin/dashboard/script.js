"use strict";
(() => {
  const REFRESH_MS = 5000;
  const SOON_MS = 1000;
  const TIMEOUT_MS = 10000;
  const KEYS_MAX = 10;
  const TOKEN = "touchline-token";
  const THEME = "touchline-theme";
  const SVG = "http://www.w3.org/2000/svg";

  const by = (id) => document.getElementById(id);
  const whole = new Intl.NumberFormat("en");
  const number = (value) => whole.format(value);
  const rounded = (value) => whole.format(value >= 100 ? Math.round(value) : Number(value.toPrecision(3)));
  const clock = (text) => new Date(text).toLocaleTimeString("en-GB");
  const moment = (text) => {
    const at = new Date(text);
    const day = at.toDateString() === new Date().toDateString() ? "" : at.toLocaleDateString("en-CA") + " ";
    return day + at.toLocaleTimeString("en-GB");
  };
  const plural = (count, one, many) => number(count) + " " + (count === 1 ? one : many);
  const duration = (ms) => (ms >= 1000 ? rounded(ms / 1000) + " s" : rounded(ms) + " ms");
  // The two largest units of a span of seconds.
  function span(seconds) {
    const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
    const from = Math.max(0, parts.findIndex(([unit]) => seconds >= unit));
    const shown = seconds < 60 ? [[1, "s"]] : parts.slice(from, Math.min(from + 2, 3));
    return shown.map(([unit, name], at) =>
      Math.floor((at > 0 ? seconds % shown[at - 1][0] : seconds) / unit) + " " + name).join(" ");
  }
  // A time of day in a zone, which is named; in the browser's own where the browser does not know it.
  function timeIn(zone, text) {
    const style = { hour: "2-digit", minute: "2-digit" };
    try {
      return new Date(text).toLocaleTimeString("en-GB", { ...style, timeZone: zone }) + " " + zone;
    } catch {
      return new Date(text).toLocaleTimeString("en-GB", { ...style, timeZoneName: "short" });
    }
  }

  // Everything from the JSON is added as text, never as markup.
  function node(tag, look, ...inside) {
    const made = document.createElement(tag);
    if (look) made.className = look;
    made.append(...inside);
    return made;
  }
  function drawn(tag, attributes, text) {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    return made;
  }
  // Names that customers chose may be written from right to left: they are isolated from the text around them.
  const foreign = (text) => node("bdi", "", text);
  const time = (text) => {
    const made = node("time", "", moment(text));
    made.dateTime = text;
    return made;
  };

  // Unchanged parts are not replaced, so that a selection is kept.
  const shown = new WeakMap();
  function fill(place, facts, build) {
    const text = JSON.stringify(facts);
    if (shown.get(place) === text) return;
    shown.set(place, text);
    place.replaceChildren(...build());
  }
  function rows(id, facts, row, nothing) {
    const place = by(id);
    fill(place, facts, () => {
      const names = [...place.parentElement.tHead.rows[0].cells].map((one) => one.textContent);
      if (facts.length > 0) return facts.map((fact) => {
        const made = node("tr", "", ...row(fact));
        [...made.cells].forEach((one, at) => { one.dataset.name = names[at]; });
        return made;
      });
      const cell = node("td", "", nothing);
      cell.colSpan = names.length;
      return [node("tr", "", cell)];
    });
  }
  const cell = (...inside) => node("td", "", ...inside);
  const count = (value) => node("td", "number", number(value));
  const head = (look, ...inside) => {
    const made = node("th", look, ...inside);
    made.scope = "row";
    return made;
  };
  // One line of text, shortened where it is too long.
  const short = (made, text) => {
    made.append(foreign(text));
    made.title = text;
    return made;
  };
  function state(look, sign, word) {
    return node("span", look, sign + "\u00a0" + word);
  }

  function showNow(figures) {
    const { readiness, samples } = figures;
    const last = samples.at(-1);
    const gateway = readiness.draining ? state("warn", "▲", "draining")
      : readiness.status === "ready" ? state("good", "●", "ready")
      : readiness.status === "degraded" ? state("warn", "▲", "degraded")
      : state("bad", "■", "not ready");
    const store = readiness.store_up ? state("good", "●", "up")
      : readiness.store_partly_up ? state("warn", "▲", "partly up")
      : state("bad", "■", "down");
    const without = { serves: "requests are charged to the journal", denies: "requests are refused", journal_failed: "requests are refused: the journal cannot be written", no_keys: "requests are refused: no key is known" };
    const storeNote = [];
    if (!readiness.store_up) storeNote.push((readiness.store_partly_up ? "some keys: " : "") + (without[readiness.without_store] || readiness.without_store));
    if (readiness.pending_units > 0) storeNote.push(plural(readiness.pending_units, "unit", "units") + " pending");
    const keysNote = !readiness.keys_loaded ? "never loaded"
      : !readiness.keys_usable ? "too old to use"
      : readiness.keys_age_seconds > 5 ? "read " + span(readiness.keys_age_seconds) + " ago" : "current";
    const all = last ? Object.values(last.requests).reduce((sum, one) => sum + one, 0) : 0;
    const rate = last ? rounded(all / last.seconds) : "–";
    const failed = last ? last.requests.failed : 0;
    const p99 = last && last.duration_seconds.p99 !== null ? duration(last.duration_seconds.p99 * 1000) : "–";
    const wait = last && last.store_seconds.p99 !== null ? "store p99 " + duration(last.store_seconds.p99 * 1000) : "";
    const tiles = [
      ["Gateway", gateway, readiness.reasons.join("; ")],
      ["Store", store, storeNote.join("; ")],
      ["Requests per second", rate, last ? "in the last " + rounded(last.seconds) + " s" : "no sample yet"],
      ["Failed", failed > 0 ? state("bad", "■", number(failed)) : last ? "0" : "–", last ? "in the last " + rounded(last.seconds) + " s" : ""],
      ["Duration, p99", p99, wait],
      ["In flight", last ? number(last.in_flight) : "–", last ? plural(last.connections, "connection", "connections") : ""],
      ["Keys", number(readiness.keys), keysNote],
    ];
    const facts = [readiness.status, readiness.reasons, readiness.draining, readiness.store_up, readiness.store_partly_up, storeNote, keysNote, readiness.keys, last];
    fill(by("now"), facts, () => tiles.map(([name, value, note]) =>
      node("div", "", node("dt", "", name), node("dd", "", value, note ? node("small", "", note) : ""))));
  }

  function showToday(figures) {
    const { today, today_error: error } = figures;
    const trouble = error ? " The store could not be read: " + error : "";
    if (!today) {
      by("today-note").textContent = trouble.trim() || "Reading the store …";
      by("near-note").textContent = "";
      rows("today", [], () => [], "No figures yet.");
      rows("near", [], () => [], "No figures yet.");
      return;
    }
    const rest = today.unattributed === 0 ? "" : ", " + number(today.unattributed) + " of them not yet attributed to an endpoint";
    const left = (Date.parse(today.ends) - Date.parse(figures.time)) / 1000;
    by("today-note").textContent = "Quota day " + today.date + ", ends at " + timeIn(today.zone, today.ends)
      + (left > 0 ? " (in " + span(left) + ")" : "") + ". " + plural(today.used, "unit", "units") + " used" + rest
      + ". Read from the store at " + clock(today.read) + "." + trouble;
    rows("today", today.tiers, (tier) => [
      head("", foreign(tier.tier)), count(tier.keys), count(tier.requests), count(tier.charged), count(tier.refunded),
      count(tier.refused_quota), count(tier.refused_tier), count(tier.refused_burst), count(tier.refused_concurrent),
      count(tier.refused_not_found), count(tier.refused_method),
    ], "No request today.");
    by("near-note").textContent = today.reached.map((one) =>
      plural(one.keys, "key", "keys") + (one.percent < 100 ? " at " + one.percent + " % or more" : " at the limit")).join(", ") + ".";
    rows("near", today.nearest.slice(0, KEYS_MAX), (key) => {
      const share = key.used * 100 / key.limit;
      const [look, word] = share >= 100 ? ["bad", " used up"] : share >= 80 ? ["warn", " near"] : ["", ""];
      const bar = node("span", "fill");
      bar.style.width = Math.min(share, 100) + "%";
      const track = node("span", "track", bar);
      track.setAttribute("aria-hidden", "true");
      return [
        short(head("name"), key.customer), short(node("td", "label"), key.label || ""), node("td", "code", key.key_id), cell(key.tier),
        node("td", "number", number(key.used) + " / " + number(key.limit)),
        // Rounded down: 100 % means that the limit is reached.
        node("td", ("share " + look).trim(), track, number(Math.floor(share * 10) / 10) + " %" + word),
      ];
    }, "No key has used a unit today.");
  }

  const milliseconds = (seconds) => (seconds === null ? null : seconds * 1000);
  const PLOTS = {
    rate: {
      title: "Requests per second over the last hour", spell: rounded, scale: linear, lines: [
        { name: "all", look: "one", of: (one) => Object.values(one.requests).reduce((sum, value) => sum + value, 0) / one.seconds },
        { name: "refused", look: "two", of: (one) => (one.requests.refused + one.requests.limited) / one.seconds },
        { name: "failed", look: "three", of: (one) => one.requests.failed / one.seconds },
      ],
    },
    delay: {
      title: "Duration of requests over the last hour", spell: duration, scale: logarithmic, lines: [
        { name: "median", look: "one", of: (one) => milliseconds(one.duration_seconds.p50) },
        { name: "p99", look: "two", of: (one) => milliseconds(one.duration_seconds.p99) },
      ],
    },
  };
  const HEIGHT = 190, LEFT = 52, RIGHT = 12, TOP = 8, BOTTOM = 22;
  const MINUTE_MS = 60000, LEAST_MINUTES = 2, MARKS_MAX = 5;

  // The next number of 1, 2, 5, 10, 20 … that is not smaller.
  function nice(least) {
    const power = 10 ** Math.floor(Math.log10(least));
    return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= least * 0.999);
  }
  // A scale: its marks, and the share of the height at which a value is drawn.
  function linear(values) {
    const most = nice(Math.max(1, ...values));
    return { marks: [0, most / 2, most], share: (value) => value / most };
  }
  // One very slow request then takes some of the height, not all of it.
  function logarithmic(values) {
    const known = values.length > 0 ? values.map((value) => Math.max(value, 0.01)) : [1, 10];
    const steps = [nice(Math.min(...known) / 2.5)];
    while (steps.length < 2 || steps.at(-1) < Math.max(...known)) steps.push(nice(steps.at(-1) * 1.5));
    const isDecade = (step) => step === 10 ** Math.round(Math.log10(step));
    while (steps.length > MARKS_MAX && !isDecade(steps.at(-1))) steps.push(nice(steps.at(-1) * 1.5));
    const [low, high] = [steps[0], steps.at(-1)];
    return {
      marks: steps.length <= MARKS_MAX ? steps : steps.filter(isDecade),
      share: (value) => Math.log(Math.max(value, low) / low) / Math.log(high / low),
    };
  }

  function plot(id, samples) {
    const place = by(id), { title, spell, scale, lines } = PLOTS[id], width = Math.max(place.clientWidth, 240);
    const points = samples.map((one) => ({ at: Date.parse(one.at), values: lines.map((line) => line.of(one)) }));
    const { marks, share } = scale(points.flatMap((point) => point.values.filter((value) => value !== null)));
    const end = points.length > 0 ? points.at(-1).at : Date.now();
    const first = points.length > 0 ? points[0].at : end;
    const period = Math.max(end - first, LEAST_MINUTES * MINUTE_MS);
    const x = (at) => width - RIGHT - (end - at) / period * (width - LEFT - RIGHT);
    const y = (value) => HEIGHT - BOTTOM - share(value) * (HEIGHT - TOP - BOTTOM);
    const svg = drawn("svg", { role: "img", viewBox: `0 0 ${width} ${HEIGHT}` });
    svg.append(drawn("title", {}, title + ". The table below has the same figures."));
    for (const mark of marks) {
      svg.append(drawn("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y(mark), y2: y(mark) }));
      svg.append(drawn("text", { class: "axis", x: LEFT - 6, y: y(mark) + 4, "text-anchor": "end" }, spell(mark)));
    }
    const step = MINUTE_MS * ([1, 2, 5, 10, 15].find((one) => period / MINUTE_MS / one <= width / 90) || 30);
    for (let at = Math.ceil((end - period) / step) * step; at <= end; at += step) {
      const text = new Date(at).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
      svg.append(drawn("line", { class: "grid", x1: x(at), x2: x(at), y1: HEIGHT - BOTTOM, y2: HEIGHT - BOTTOM + 4 }));
      svg.append(drawn("text", { class: "axis", x: Math.min(x(at), width - 18), y: HEIGHT - 4, "text-anchor": "middle" }, text));
    }
    lines.forEach((line, which) => {
      let path = "", pen = "M";
      for (const point of points) {
        const value = point.values[which];
        if (value === null) { pen = "M"; continue; }
        // A point without neighbours is drawn as a dot.
        path += pen + x(point.at).toFixed(1) + " " + y(value).toFixed(1) + "h0";
        pen = "L";
      }
      if (path) svg.append(drawn("path", { class: "series " + line.look, d: path }));
    });
    const cursor = drawn("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
    svg.append(cursor);
    const read = (which) => {
      const point = points[which];
      by(id + "-reading").replaceChildren(...!point ? ["No sample yet: the first is taken after ten seconds."] : [
        ...lines.map((line, at) => {
          const swatch = drawn("svg", { class: "swatch", viewBox: "0 0 20 4", "aria-hidden": "true" });
          swatch.append(drawn("path", { class: "series " + line.look, d: "M1 2H19" }));
          return node("span", "", swatch, line.name + " ", node("strong", "", point.values[at] === null ? "–" : spell(point.values[at])));
        }), node("span", "", clock(samples[which].at)),
      ]);
    };
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const wanted = (event.clientX - box.left) * width / box.width;
      let nearest = -1;
      points.forEach((point, which) => {
        if (nearest < 0 || Math.abs(x(point.at) - wanted) < Math.abs(x(points[nearest].at) - wanted)) nearest = which;
      });
      if (nearest < 0) return;
      cursor.setAttribute("x1", x(points[nearest].at));
      cursor.setAttribute("x2", x(points[nearest].at));
      cursor.setAttribute("visibility", "visible");
      read(nearest);
    });
    svg.addEventListener("pointerleave", () => {
      cursor.setAttribute("visibility", "hidden");
      read(points.length - 1);
    });
    read(points.length - 1);
    place.replaceChildren(svg);
  }

  function minutes(samples, perMinute) {
    const all = [];
    for (let end = samples.length; end > 0; end -= perMinute) {
      const part = samples.slice(Math.max(0, end - perMinute), end);
      const sum = (name) => part.reduce((total, one) => total + one.requests[name], 0);
      const worst = (name) => {
        const known = part.map((one) => one.duration_seconds[name]).filter((value) => value !== null);
        return known.length > 0 ? duration(Math.max(...known) * 1000) : "–";
      };
      all.push({
        until: part.at(-1).at, served: sum("served"), refused: sum("refused"), limited: sum("limited"), failed: sum("failed"),
        left: sum("client_closed"), p50: worst("p50"), p99: worst("p99"),
      });
    }
    return all;
  }

  let plotted = "";
  function showHour(samples, seconds) {
    const wanted = [samples.length, samples.length > 0 ? samples.at(-1).at : "", by("rate").clientWidth].join(" ");
    if (wanted === plotted) return;
    plotted = wanted;
    plot("rate", samples);
    plot("delay", samples);
    rows("minutes", minutes(samples, Math.max(1, Math.round(60 / seconds))), (one) => [
      head("", time(one.until)), count(one.served), count(one.refused), count(one.limited), count(one.failed), count(one.left),
      node("td", "number", one.p50), node("td", "number", one.p99),
    ], "No sample yet.");
  }

  function showUpstreams(upstreams) {
    const servers = upstreams.flatMap((upstream) => upstream.servers.map((server) => ({ name: upstream.name, ...server })));
    rows("servers", servers, (server) => [
      head("nowrap", foreign(server.name)), node("td", "code address", server.server),
      node("td", "nowrap", !server.up ? state("bad", "■", "down") : server.answered === null ? state("", "○", "up, unused")
        : server.answered ? state("good", "●", "up") : state("warn", "▲", "up, failing")), count(server.in_flight),
    ], "No server is configured.");
    rows("counts", upstreams, (upstream) => [
      head("", foreign(upstream.name)), count(upstream.retries), count(upstream.ejections), count(upstream.checks_failed),
      count(upstream.resolve_failures),
    ], "No upstream is configured.");
  }

  function showConfiguration(figures) {
    const { config } = figures.readiness;
    fill(by("config-note"), [config.hash, config.applied], () =>
      ["Running: ", node("span", "code", config.hash), ", since ", time(config.applied), "."]);
    by("refused").hidden = !config.refused;
    if (config.refused) {
      by("refused-note").textContent = "At " + moment(config.refused.at) + ". The previous configuration stays in use.";
      fill(by("refused-reason"), config.refused.reason, () => [config.refused.reason]);
    }
    rows("reloads", figures.reloads, (one) => [
      head("code", time(one.at)),
      one.outcome === "applied" ? cell(state("good", "●", "applied"))
        : cell(node("details", "", node("summary", "", state("bad", "■", "refused")), node("span", "reason", one.reason || ""))),
      cell(one.cause), node("td", "code", one.hash),
    ], "None yet.");
  }

  function show(figures) {
    by("entry").hidden = true;
    by("figures").hidden = false;
    const ready = figures.readiness.status === "ready";
    document.title = (ready ? "" : "▲ " + figures.readiness.status + " · ") + figures.node + " · Touchline";
    by("gateway").textContent = figures.node + " · version " + figures.version + " · up " + span(figures.uptime_seconds);
    showNow(figures);
    showToday(figures);
    showHour(figures.samples, figures.sample_seconds);
    showUpstreams(figures.upstreams);
    showConfiguration(figures);
    rows("answers", figures.answered, (one) => [head("", foreign(one.tier)), node("td", "code", one.outcome), count(one.requests)],
      "No request yet.");
    by("about").textContent = "Times are in the zone of this browser (" + Intl.DateTimeFormat().resolvedOptions().timeZone
      + "), except the end of the quota day. Durations are estimated from the buckets of the metrics.";
  }

  // A screen reader announces this text: it is written only when it changes.
  function announce(text) {
    if (by("state").textContent !== text) by("state").textContent = text;
  }

  let latest = null, answeredAt = "", timer = 0, paused = false, asking = false;

  async function refresh() {
    if (asking || document.hidden) return;
    asking = true;
    let again = REFRESH_MS;
    try {
      const token = sessionStorage.getItem(TOKEN);
      const answer = await fetch("dashboard.json", {
        headers: token ? { Authorization: "Bearer " + token } : {},
        cache: "no-store", credentials: "omit", redirect: "error", signal: AbortSignal.timeout(TIMEOUT_MS),
      });
      if (answer.status === 401) {
        sessionStorage.removeItem(TOKEN);
        by("figures").hidden = true;
        by("entry").hidden = false;
        announce(token ? "The token is wrong." : "A token is needed.");
        by("token").focus();
        return;
      }
      if (!answer.ok) {
        const body = await answer.json().catch(() => ({}));
        throw new Error("status " + answer.status + (body.hint ? ": " + body.hint : ""));
      }
      latest = await answer.json();
      answeredAt = clock(latest.time);
      show(latest);
      if (!latest.today && !latest.today_error) again = SOON_MS;
      announce(paused ? "Paused at " + answeredAt : "Live, every " + REFRESH_MS / 1000 + " s");
    } catch (error) {
      announce("No answer" + (answeredAt ? " since " + answeredAt : "") + " (" + error.message + ")");
    } finally {
      asking = false;
    }
    clearTimeout(timer);
    if (!paused) timer = setTimeout(refresh, again);
  }

  by("entry").addEventListener("submit", (event) => {
    event.preventDefault();
    sessionStorage.setItem(TOKEN, by("token").value.trim());
    by("token").value = "";
    refresh();
  });
  by("pause").addEventListener("click", () => {
    paused = !paused;
    by("pause").setAttribute("aria-pressed", String(paused));
    clearTimeout(timer);
    if (paused) announce("Paused" + (answeredAt ? " at " + answeredAt : ""));
    else refresh();
  });
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden && !paused) refresh();
  });
  const theme = localStorage.getItem(THEME);
  const wear = (name) => {
    if (name === "light" || name === "dark") document.documentElement.dataset.theme = name;
    else delete document.documentElement.dataset.theme;
  };
  if (theme) by("theme").value = theme;
  wear(by("theme").value);
  by("theme").addEventListener("change", () => {
    localStorage.setItem(THEME, by("theme").value);
    wear(by("theme").value);
  });
  new ResizeObserver(() => {
    if (latest) showHour(latest.samples, latest.sample_seconds);
  }).observe(by("rate"));
  refresh();
})();
