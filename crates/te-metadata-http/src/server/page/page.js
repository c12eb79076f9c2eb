"use strict";
// Every word of the cluster goes into the page as text, never as markup: names are chosen by whoever publishes them.
(() => {
  const SHOWN = 200;
  const GONE_MS = 8000;
  const byId = (id) => document.getElementById(id);
  const segments = new Map();
  const rows = new Map();
  const open = new Set();
  let order = { by: "name", down: false };
  let limit = SHOWN;
  let skew = 0;
  // Nothing is claimed before the server has spoken.
  let heard = false;
  let token = sessionStorage.getItem("te-token") || "";

  const make = (tag, name, text) => {
    const element = document.createElement(tag);
    if (name) element.className = name;
    if (text !== undefined) element.textContent = text;
    return element;
  };
  const bytes = (count) => {
    const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let unit = 0;
    while (count >= 1024 && unit < units.length - 1) { count /= 1024; unit += 1; }
    return (unit === 0 || Number.isInteger(count) ? String(count) : count.toFixed(1)) + " " + units[unit];
  };
  const span = (ms) => {
    const s = Math.max(0, ms / 1000);
    if (s < 10) return s.toFixed(1) + " s";
    if (s < 120) return Math.round(s) + " s";
    if (s < 7200) return Math.round(s / 60) + " min";
    if (s < 172800) return Math.round(s / 3600) + " h";
    return Math.round(s / 86400) + " d";
  };
  const plural = (count, word) => count + " " + word + (count === 1 ? "" : "s");

  const age = (segment) => segment.lease ? segment.lease.age_ms + (performance.now() - segment.heard) : null;
  const state = (segment) => {
    if (segment.gone) return "gone";
    if (segment.state === "live" && age(segment) > segment.lease.ttl_ms * 0.7) return "late";
    return segment.state;
  };
  const RANK = { gone: 0, unreadable: 1, late: 2, unleased: 3, live: 4 };
  const value = {
    name: (s) => s.name, state: (s) => RANK[state(s)], owner: (s) => s.owner || "", bytes: (s) => s.bytes,
    lease: (s) => { const a = age(s); return a === null ? -1 : a; }, changed: (s) => -s.changed_ms,
  };
  const compare = (a, b) => {
    const [x, y] = [value[order.by](a), value[order.by](b)];
    const less = typeof x === "string" ? x.localeCompare(y, "en", { numeric: true }) : x - y;
    return (order.down ? -less : less) || (a.key < b.key ? -1 : 1);
  };
  const text = (s) => [s.name, s.cluster || "", s.owner || "", state(s), s.incarnation || "", s.protocol]
    .concat(s.transports, s.locations.map((l) => l.location)).join(" ").toLowerCase();

  const take = (segment) => {
    segment.heard = performance.now();
    segment.version = (segments.get(segment.key)?.version || 0) + 1;
    segments.set(segment.key, segment);
  };

  const detail = (s) => {
    const box = make("div", "detail");
    const table = make("table");
    const head = table.appendChild(make("tr"));
    for (const word of ["Location", "Buffers", "Memory", "Sizes"]) head.appendChild(make("th", "", word));
    for (const place of s.locations) {
      const row = table.appendChild(make("tr"));
      row.appendChild(make("td", "", place.location));
      row.appendChild(make("td", "number", place.buffers));
      row.appendChild(make("td", "number", bytes(place.bytes)));
      const seen = place.sizes.reduce((sum, [, count]) => sum + count, 0);
      const sizes = place.sizes.map(([size, count]) => (count > 1 ? count + " × " : "") + bytes(size));
      if (seen < place.buffers) sizes.push("…");
      row.appendChild(make("td", "", sizes.join(", ")));
    }
    box.appendChild(s.locations.length ? table : make("p", "", "It offers no buffers."));
    const list = box.appendChild(make("dl"));
    const add = (word, what) => {
      if (!what) return;
      list.appendChild(make("dt", "", word));
      list.appendChild(make("dd", "", what));
    };
    add("Name", s.name);
    add("Key", s.key);
    add("Incarnation", s.incarnation);
    add("Protocol", s.protocol);
    add("Record", bytes(s.record_bytes) + ", revision " + s.revision);
    add("Changed", new Date(s.changed_ms).toLocaleString("en-GB"));
    add("Lease", s.lease ? span(s.lease.ttl_ms) : "none: nobody removes it when its owner dies");
    return box;
  };

  const row = (s) => {
    const item = make("li");
    const line = item.appendChild(make("button", "line"));
    line.type = "button";
    line.setAttribute("aria-expanded", String(open.has(s.key)));
    const name = line.appendChild(make("span", "name"));
    name.appendChild(make("b", "", s.name));
    if (s.cluster) name.appendChild(make("small", "", "cluster " + s.cluster));
    if (s.problem) name.appendChild(make("span", "problem", s.problem));
    line.appendChild(make("span", "state"));
    line.appendChild(make("span", s.owner ? "owner" : "owner none", s.owner || "–"));
    const buffers = line.appendChild(make("span", "buffers"));
    for (const place of s.locations.slice(0, 4)) {
      const chip = buffers.appendChild(make("span", "chip", place.location));
      chip.appendChild(make("em", "", bytes(place.bytes)));
    }
    const rest = s.locations.length > 4 ? ", " + plural(s.locations.length - 4, "more location") : "";
    buffers.appendChild(make("small", "", plural(s.buffers, "buffer") + rest));
    const transports = line.appendChild(make("span", "transports"));
    for (const word of s.transports) transports.appendChild(make("span", "chip", word));
    if (!s.transports.length) {
      transports.textContent = s.protocol || "–";
      transports.classList.toggle("none", !s.protocol);
    }
    line.appendChild(make("span", "lease number"));
    line.appendChild(make("span", "changed number"));
    line.addEventListener("click", () => {
      if (!open.delete(s.key)) open.add(s.key);
      rows.delete(s.key);
      draw();
    });
    if (open.has(s.key)) item.appendChild(detail(s));
    return item;
  };

  // What moves by itself: ages, and what follows from them.
  const tick = (item, s) => {
    const now = state(s);
    const mark = item.querySelector(".state");
    if (mark.dataset.now !== now) {
      mark.dataset.now = now;
      mark.className = "state " + now;
      mark.textContent = { unleased: "no lease", late: "lease late" }[now] || now;
      item.classList.toggle("late", now === "late");
      item.classList.toggle("gone", now === "gone");
    }
    const lease = item.querySelector(".lease");
    const old = age(s);
    lease.classList.toggle("none", old === null);
    if (old === null) lease.textContent = "–";
    else {
      let meter = lease.querySelector(".meter");
      if (!meter) {
        lease.replaceChildren(make("span"));
        meter = lease.appendChild(make("span", "meter"));
        meter.appendChild(make("i"));
      }
      lease.firstChild.textContent = span(old);
      meter.firstChild.style.width = Math.max(0, 100 - 100 * old / s.lease.ttl_ms) + "%";
    }
    item.querySelector(".changed").textContent = span(Date.now() + skew - s.changed_ms) + " ago";
  };

  const draw = () => {
    const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = [...segments.values()].filter((s) => {
      const all = words.length ? text(s) : "";
      return words.every((word) => all.includes(word));
    }).sort(compare);
    const shown = found.slice(0, limit);
    const list = byId("segments");
    const focused = document.activeElement;
    let at = list.firstChild;
    for (const s of shown) {
      let held = rows.get(s.key);
      if (!held || held.version !== s.version) {
        const item = row(s);
        if (held?.item.contains(focused)) queueMicrotask(() => item.querySelector(".line").focus());
        if (held && held.version !== s.version) {
          item.classList.add("fresh");
          setTimeout(() => item.classList.remove("fresh"), 50);
        }
        held = { item, version: s.version };
        rows.set(s.key, held);
      }
      tick(held.item, s);
      if (held.item === at) at = at.nextSibling;
      else list.insertBefore(held.item, at);
    }
    while (at) { const next = at.nextSibling; at.remove(); at = next; }
    for (const [key, held] of rows) if (!held.item.isConnected) rows.delete(key);

    const living = [...segments.values()].filter((s) => !s.gone);
    const total = (id, what) => { byId(id).textContent = heard ? what : "–"; };
    const problems = living.filter((s) => s.problem || state(s) === "late").length;
    total("total-segments", living.length);
    total("total-bytes", bytes(living.reduce((sum, s) => sum + s.bytes, 0)));
    total("total-buffers", living.reduce((sum, s) => sum + s.buffers, 0));
    total("total-problems", problems);
    byId("total-problems").className = problems ? "bad" : "";
    const empty = byId("empty");
    empty.hidden = found.length > 0 || !heard;
    empty.textContent = segments.size ? "No segment matches." : "No segment is published yet.";
    const more = byId("more");
    more.hidden = found.length <= limit;
    more.textContent = "Show " + Math.min(SHOWN, found.length - limit) + " more of " + (found.length - limit);
    for (const head of document.querySelectorAll("#heads button")) {
      const by = head.dataset.sort === order.by;
      head.classList.toggle("by", by);
      head.textContent = head.textContent.replace(/ [↑↓]$/, "") + (by ? (order.down ? " ↓" : " ↑") : "");
    }
    byId("order").textContent = order.down ? "↓" : "↑";
    byId("sort").value = order.by;
  };

  let planned = false;
  const soon = () => {
    if (planned) return;
    planned = true;
    setTimeout(() => { planned = false; draw(); }, 60);
  };

  const hear = (name, data) => {
    if (name === "all") {
      skew = data.now_ms - Date.now();
      heard = true;
      const keys = new Set(data.segments.map((s) => s.key));
      for (const key of segments.keys()) if (!keys.has(key)) segments.delete(key);
      for (const s of data.segments) {
        if (segments.get(s.key)?.revision === s.revision) {
          Object.assign(segments.get(s.key), { lease: s.lease, heard: performance.now(), gone: false });
        } else take(s);
      }
    } else if (name === "segment") take(data);
    else if (name === "gone") {
      const s = segments.get(data);
      if (s) {
        s.gone = true;
        setTimeout(() => { if (segments.get(data)?.gone) { segments.delete(data); soon(); } }, GONE_MS);
      }
    } else if (name === "leases") {
      for (const [key, lease] of Object.entries(data)) {
        const s = segments.get(key);
        if (s) { s.lease = lease; s.heard = performance.now(); }
      }
    }
    soon();
  };

  const link = (kind, words) => {
    byId("link").className = "link " + kind;
    byId("link-text").textContent = words;
  };
  const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

  // Not EventSource: it cannot send a token.
  const listen = async () => {
    const headers = token ? { Authorization: "Bearer " + token } : {};
    const answer = await fetch("cluster/events", { headers, cache: "no-store" });
    if (answer.status === 401) return "token";
    if (!answer.ok) throw new Error("status " + answer.status);
    byId("token-form").hidden = true;
    if (token) sessionStorage.setItem("te-token", token);
    link("on", "live");
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const late = sleep(10000).then(() => ({ late: true }));
      const { done, value: piece, late: silent } = await Promise.race([reader.read(), late]);
      if (done || silent) { reader.cancel().catch(() => {}); return "ended"; }
      rest += piece;
      const messages = rest.split("\n\n");
      rest = messages.pop();
      for (const message of messages) {
        let name = "", data = "";
        for (const line of message.split("\n")) {
          if (line.startsWith("event: ")) name = line.slice(7);
          if (line.startsWith("data: ")) data += line.slice(6);
        }
        if (data) hear(name, JSON.parse(data));
      }
    }
  };
  const stay = async () => {
    for (let wait = 500; ; wait = Math.min(wait * 2, 8000)) {
      const began = performance.now();
      let outcome = "ended";
      try { outcome = await listen(); } catch { outcome = "ended"; }
      if (outcome === "token") {
        link("off", "token needed");
        byId("token-form").hidden = false;
        await new Promise((done) => { byId("token-form").onsubmit = (e) => {
          e.preventDefault();
          token = byId("token").value;
          byId("token").value = "";
          done();
        }; });
        wait = 250;
        continue;
      }
      if (performance.now() - began > 5000) wait = 500;
      link("off", "no connection, trying again");
      await sleep(wait);
    }
  };

  byId("search").addEventListener("input", () => { limit = SHOWN; draw(); });
  byId("sort").addEventListener("change", (e) => { order = { by: e.target.value, down: false }; draw(); });
  byId("order").addEventListener("click", () => { order.down = !order.down; draw(); });
  byId("heads").addEventListener("click", (e) => {
    const by = e.target.dataset?.sort;
    if (!by) return;
    order = { by, down: order.by === by && !order.down };
    draw();
  });
  byId("more").addEventListener("click", () => { limit += SHOWN; draw(); });
  setInterval(draw, 1000);
  draw();
  stay();
})();
