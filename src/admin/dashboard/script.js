"use strict";
(() => {
  const REFRESH_MS = 5000;
  const SOON_MS = 1000;
  const PATIENCE_MS = 10000;
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

  // Values from the JSON are put on the page as text, never as markup.
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
  // Customers' names are isolated from the text around them, whatever their writing direction.
  const foreign = (text) => node("bdi", "", text);
  const time = (text) => {
    const made = node("time", "", moment(text));
    made.dateTime = text;
    return made;
  };

  // Unchanged parts are left alone, so that a selection stays.
  const shown = new WeakMap();
  function fill(place, facts, build) {
    const facts_text = JSON.stringify(facts);
    if (shown.get(place) === facts_text) return;
    shown.set(place, facts_text);
    place.replaceChildren(...build());
  }
  function rows(id, facts, row, nothing) {
    const place = by(id);
    fill(place, facts, () => {
      if (facts.length > 0) return facts.map((fact) => node("tr", "", ...row(fact)));
      const cell = node("td", "", nothing);
      cell.colSpan = place.parentElement.querySelectorAll("thead th").length;
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
  function state(look, sign, word) {
    return node("span", look, sign + " " + word);
  }

  function showNow(figures) {
    const { readiness, samples } = figures;
    const last = samples.at(-1);
    const gateway = readiness.draining ? state("warn", "▲", "draining")
      : readiness.status === "ready" ? state("good", "●", "ready")
      : readiness.status === "degraded" ? state("warn", "▲", "degraded")
      : state("bad", "■", "not ready");
    const store = readiness.store_up ? state("good", "●", "up") : state("bad", "■", "away");
    const without = { serves: "served from the journal", denies: "requests are refused", journal_failed: "the journal cannot be written: requests are refused", no_keys: "there is no key table: requests are refused" };
    const storeNote = [];
    if (!readiness.store_up) storeNote.push(without[readiness.without_store] || readiness.without_store);
    if (readiness.pending_units > 0) storeNote.push(plural(readiness.pending_units, "unit", "units") + " not settled");
    const keysNote = !readiness.keys_loaded ? "never loaded"
      : !readiness.keys_usable ? "too old to use"
      : readiness.keys_age_seconds > 5 ? "current " + rounded(readiness.keys_age_seconds) + " s ago" : "current";
    const all = last ? Object.values(last.requests).reduce((sum, one) => sum + one, 0) : 0;
    const rate = last ? rounded(all / last.seconds) : "–";
    const failed = last ? last.requests.failed : 0;
    const p99 = last && last.duration_seconds.p99 !== null ? rounded(last.duration_seconds.p99 * 1000) + " ms" : "–";
    const wait = last && last.store_seconds.p99 !== null ? "store p99 " + rounded(last.store_seconds.p99 * 1000) + " ms" : "";
    const tiles = [
      ["Gateway", gateway, readiness.reasons.join("; ")],
      ["Store", store, storeNote.join("; ")],
      ["Requests a second", rate, last ? "in the last " + rounded(last.seconds) + " s" : "no sample yet"],
      ["Failed", last ? state(failed > 0 ? "bad" : "", failed > 0 ? "■" : "", number(failed)) : "–", last ? "in the last " + rounded(last.seconds) + " s" : ""],
      ["Duration, p99", p99, wait],
      ["In flight", last ? number(last.in_flight) : "–", last ? plural(last.connections, "connection", "connections") : ""],
      ["Keys", number(readiness.keys), keysNote],
    ];
    const facts = [readiness.status, readiness.reasons, readiness.draining, readiness.store_up, storeNote, keysNote, readiness.keys, last];
    fill(by("now"), facts, () => tiles.map(([name, value, note]) =>
      node("div", "", node("dt", "", name), node("dd", "", value, note ? node("small", "", note) : ""))));
  }

  function showToday(figures) {
    const { today, today_error: error } = figures;
    const trouble = error ? " The store could not be read: " + error : "";
    if (!today) {
      by("today-note").textContent = error ? trouble.trim() : "Reading the store …";
      by("near-note").textContent = "";
      rows("today", [], () => [], "No data yet.");
      rows("near", [], () => [], "No data yet.");
      return;
    }
    const rest = today.unattributed === 0 ? "" : ", " + number(today.unattributed) + " of them not yet attributed to an endpoint";
    by("today-note").textContent = "Quota day " + today.date + ", until " + moment(today.ends) + ": "
      + plural(today.used, "unit", "units") + " used" + rest + ". Read from the store at " + clock(today.read) + "." + trouble;
    rows("today", today.tiers, (tier) => [
      head("", foreign(tier.tier)), count(tier.keys), count(tier.requests), count(tier.charged), count(tier.refunded),
      count(tier.refused_quota), count(tier.refused_tier), count(tier.refused_burst), count(tier.refused_concurrent),
      count(tier.refused_not_found), count(tier.refused_method),
    ], "No requests today.");
    const reached = today.reached.map((one) => plural(one.keys, "key", "keys") + " at " + one.percent + " % or more");
    by("near-note").textContent = reached.join(", ") + ".";
    rows("near", today.nearest, (key) => {
      const share = key.used * 100 / key.limit;
      const [look, word] = share >= 100 ? ["bad", "used up"] : share >= 80 ? ["warn", "near"] : ["", ""];
      const bar = node("span", "fill");
      bar.style.width = Math.min(share, 100) + "%";
      const track = node("span", "track", bar);
      track.setAttribute("aria-hidden", "true");
      // Rounded down: only an exhausted quota shows 100 %.
      const percentage = number(Math.floor(share * 10) / 10) + " %" + (word ? " " + word : "");
      return [
        head("free", foreign(key.customer), key.label ? node("small", "", foreign(key.label)) : "",
          node("small", "code", key.key_id)),
        node("td", ("number share " + look).trim(), percentage, track), count(key.used), count(key.limit), cell(key.tier),
      ];
    }, "No key has used any units today.");
  }

  const PLOTS = {
    rate: [
      { name: "all", look: "one", of: (one) => Object.values(one.requests).reduce((sum, value) => sum + value, 0) / one.seconds },
      { name: "refused", look: "two", of: (one) => (one.requests.refused + one.requests.limited) / one.seconds },
      { name: "failed", look: "three", of: (one) => one.requests.failed / one.seconds },
    ],
    delay: [
      { name: "median", look: "one", of: (one) => milliseconds(one.duration_seconds.p50) },
      { name: "p99", look: "two", of: (one) => milliseconds(one.duration_seconds.p99) },
    ],
  };
  const milliseconds = (seconds) => (seconds === null ? null : seconds * 1000);
  const HEIGHT = 190, LEFT = 46, RIGHT = 76, TOP = 10, BOTTOM = 22;
  const MINUTE_MS = 60000, LEAST_MINUTES = 10;

  function nice(most) {
    const power = 10 ** Math.floor(Math.log10(Math.max(most, 1e-3)));
    return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= most * 0.999) || most;
  }

  function plot(id, samples) {
    const place = by(id), series = PLOTS[id], width = Math.max(place.clientWidth, 240);
    const titles = { rate: "Requests a second over the last hour", delay: "Duration of requests over the last hour" };
    const points = samples.map((one) => ({ at: Date.parse(one.at), values: series.map((line) => line.of(one)) }));
    const most = nice(Math.max(id === "rate" ? 1 : 0.1, ...points.flatMap((point) => point.values.filter((value) => value !== null))));
    const end = points.length > 0 ? points.at(-1).at : Date.now();
    // The available samples, but at least some minutes.
    const first = points.length > 0 ? points[0].at : end;
    const span = Math.max(Math.ceil((end - first) / MINUTE_MS), LEAST_MINUTES);
    const x = (at) => width - RIGHT - (end - at) / (span * MINUTE_MS) * (width - LEFT - RIGHT);
    const y = (value) => HEIGHT - BOTTOM - value / most * (HEIGHT - TOP - BOTTOM);
    const svg = drawn("svg", { role: "img", viewBox: `0 0 ${width} ${HEIGHT}` });
    const summary = points.length === 0 ? "No sample yet." : series.map((line, at) => {
      const value = points.at(-1).values[at];
      return line.name + " " + (value === null ? "none" : rounded(value));
    }).join(", ") + " at the end. The table below has all figures.";
    svg.append(drawn("title", {}, titles[id] + ": " + summary));
    for (const part of [0, 0.5, 1]) {
      const at = y(most * part);
      svg.append(drawn("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: at, y2: at }));
      svg.append(drawn("text", { class: "axis", x: LEFT - 6, y: at + 4, "text-anchor": "end" }, rounded(most * part)));
    }
    const parts = width < 420 ? 2 : 4;
    for (let part = 0; part <= parts; part += 1) {
      const at = end - span * MINUTE_MS * part / parts;
      const text = new Date(at).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
      svg.append(drawn("text", { class: "axis", x: x(at), y: HEIGHT - 5, "text-anchor": "middle" }, text));
    }
    const ends = [];
    series.forEach((line, which) => {
      let path = "", pen = "M";
      for (const point of points) {
        const value = point.values[which];
        if (value === null) { pen = "M"; continue; }
        path += pen + x(point.at).toFixed(1) + " " + y(value).toFixed(1);
        pen = "L";
      }
      if (path) svg.append(drawn("path", { class: "series " + line.look, d: path }));
      const known = points.filter((point) => point.values[which] !== null).at(-1);
      if (known) ends.push({ line, at: y(known.values[which]) });
    });
    // Names beside the ends of their lines, moved apart where they would lie over each other.
    ends.sort((one, other) => other.at - one.at);
    let floor = HEIGHT - BOTTOM + 4;
    for (const one of ends) {
      const at = Math.min(one.at, floor);
      floor = at - 14;
      const left = width - RIGHT + 4;
      svg.append(drawn("line", { class: "series " + one.line.look, x1: left, x2: left + 12, y1: at, y2: at }));
      svg.append(drawn("text", { class: "key", x: left + 15, y: at + 4 }, one.line.name));
    }
    const cursor = drawn("line", { class: "cursor", y1: TOP, y2: HEIGHT - BOTTOM, visibility: "hidden" });
    svg.append(cursor);
    const read = (which) => {
      const point = points[which];
      by(id + "-reading").textContent = !point ? "No sample yet: the first is taken ten seconds after the start."
        : clock(samples[which].at) + ": " + series.map((line, at) =>
          line.name + " " + (point.values[at] === null ? "–" : rounded(point.values[at]))).join(", ");
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
        return known.length > 0 ? rounded(Math.max(...known) * 1000) : "–";
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
      head("", foreign(server.name)), node("td", "code", server.server),
      node("td", "nowrap", !server.up ? state("bad", "■", "out") : server.answered === null ? state("", "○", "no request yet")
        : server.answered ? state("good", "●", "answers") : state("warn", "▲", "fails")), count(server.in_flight),
    ], "No servers.");
    rows("troubles", upstreams, (upstream) => [
      head("", foreign(upstream.name)), count(upstream.retries), count(upstream.ejections), count(upstream.checks_failed),
      count(upstream.resolve_failures),
    ], "No upstreams.");
  }

  function showConfiguration(figures) {
    const { config } = figures.readiness;
    fill(by("config-note"), [config.hash, config.applied], () =>
      ["Running: ", node("span", "code", config.hash), ", since ", time(config.applied), "."]);
    by("refused").hidden = !config.refused;
    if (config.refused) {
      by("refused-note").textContent = "At " + moment(config.refused.at) + "; the previous configuration is still running.";
      fill(by("refused-reason"), config.refused.reason, () => [config.refused.reason]);
    }
    rows("reloads", figures.reloads, (one) => [
      head("code", time(one.at)),
      node("td", one.reason ? "reason" : "", one.outcome === "applied" ? state("good", "●", "applied") : state("bad", "■", "refused"),
        one.reason ? node("small", "", one.reason) : ""),
      cell(one.cause), node("td", "code", one.hash),
    ], "None yet.");
  }

  function show(figures) {
    by("entry").hidden = true;
    by("figures").hidden = false;
    document.title = (figures.readiness.status === "ready" ? "" : "▲ " + figures.readiness.status + " · ") + "Touchline";
    showNow(figures);
    showToday(figures);
    showHour(figures.samples, figures.sample_seconds);
    showUpstreams(figures.upstreams);
    showConfiguration(figures);
    rows("answers", figures.answered, (one) => [head("", foreign(one.tier)), node("td", "code", one.outcome), count(one.requests)],
      "No request yet.");
    by("about").textContent = "Touchline " + figures.version + ". Times are those of this browser ("
      + Intl.DateTimeFormat().resolvedOptions().timeZone + "). Durations are estimated from the buckets of the metrics.";
  }

  // An unchanged state is not announced again at every refresh.
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
        cache: "no-store", credentials: "omit", redirect: "error", signal: AbortSignal.timeout(PATIENCE_MS),
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
      announce(paused ? "Paused at " + answeredAt : "Live, every " + REFRESH_MS / 1000 + " seconds");
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
