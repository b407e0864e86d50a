// The page of the dataset service. Data of the server is inserted as text, never as markup.
"use strict";
(() => {
  const LARGE_BYTES = 64 << 20; // of a file that is not sent before it is known to be wanted
  const HASHED_BYTES = 1 << 20; // between two of them the page responds
  const AT_ONCE = 4;
  const WAITS_MS = [1000, 2000, 4000]; // before an attempt that failed for a passing reason is made again
  const PAGE_FILES = 100;
  const FEW_LABELS = 12;
  const MOST_ROWS = 200; // of uploads that are shown
  const ARCHIVE = /\.(tar|zip|tar\.gz|tgz|tar\.zst)$/i;
  const LEFTOVERS = new Set([".DS_Store", "Thumbs.db", "desktop.ini"]);

  const part = (root, name) => root.querySelector(`[data-of="${name}"]`);
  const copyOf = (id) => document.getElementById(id).content.cloneNode(true);
  // from the origin, which holds no credentials even where the page's own address does: fetch refuses those
  const at = (path) => new URL(path, location.origin).href;
  const encoded = (path) => path.split("/").map(encodeURIComponent).join("/");
  const ofDataset = (name) => `/datasets/${encodeURIComponent(name)}`;
  const ofFile = (name, path) => `${ofDataset(name)}/files/${encoded(path)}`;
  const counted = (number, one, many) => `${number.toLocaleString("en")} ${number === 1 ? one : many}`;
  const files = (number) => counted(number, "file", "files");

  function bytes(number) {
    const units = ["B", "kB", "MB", "GB", "TB", "PB"];
    let unit = 0;
    while (number >= 999.5 && unit < units.length - 1) {
      number /= 1000;
      unit += 1;
    }
    return `${unit && number < 99.95 ? number.toFixed(1) : Math.round(number)} ${units[unit]}`;
  }

  function make(tag, className = "", text = "") {
    const element = document.createElement(tag);
    element.className = className;
    element.textContent = text;
    return element;
  }

  function link(text, hash) {
    const element = make("a", "", text);
    element.href = hash;
    return element;
  }

  let saidTimer = 0;
  function say(text) {
    const said = document.getElementById("said");
    said.textContent = text;
    said.classList.add("shown");
    clearTimeout(saidTimer);
    saidTimer = setTimeout(() => said.classList.remove("shown"), 4000);
  }

  const sentence = (status, body) => (body && body.error) || `The server answered ${status}.`;

  async function ask(method, path, body) {
    const options = { method, cache: "no-store", headers: {} };
    if (body !== undefined) {
      options.headers["Content-Type"] = "application/json";
      options.body = JSON.stringify(body);
    }
    let response;
    try {
      response = await fetch(at(path), options);
    } catch (error) {
      throw new Error("The server does not respond. Check the network.");
    }
    const answer = await response.json().catch(() => null);
    if (!response.ok) throw Object.assign(new Error(sentence(response.status, answer)), { status: response.status });
    return answer;
  }

  // Opens the dialog; true if it was confirmed, by typing the word if one is required.
  function confirmed(title, text, word = "") {
    const dialog = document.getElementById("ask");
    const input = document.getElementById("ask-input");
    const yes = document.getElementById("ask-yes");
    document.getElementById("ask-title").textContent = title;
    document.getElementById("ask-text").textContent = text;
    document.getElementById("ask-word").textContent = word;
    document.getElementById("ask-type").hidden = !word;
    input.value = "";
    const look = () => { yes.disabled = Boolean(word) && input.value !== word; };
    input.oninput = look;
    look();
    dialog.returnValue = "";
    dialog.showModal();
    (word ? input : dialog.querySelector("button[value='']")).focus();
    return new Promise((resolve) => {
      dialog.onclose = () => resolve(dialog.returnValue === "yes");
      input.onkeydown = (event) => { // Enter would press the first button, which is Cancel
        if (event.key !== "Enter") return;
        event.preventDefault();
        if (!yes.disabled) yes.click();
      };
    });
  }

  // ---- uploads -----------------------------------------------------------------------------------------------------

  // One request with progress. `passing` of an error says whether it is temporary.
  function put(job, path, body, headers) {
    return new Promise((resolve, reject) => {
      const request = new XMLHttpRequest();
      job.request = request;
      request.open("PUT", at(path));
      request.setRequestHeader("Content-Type", "application/octet-stream");
      for (const [name, value] of Object.entries(headers)) request.setRequestHeader(name, value);
      request.upload.onprogress = (event) => job.progressed(event.loaded);
      const failed = (text, more) => reject(Object.assign(new Error(text), more));
      request.onabort = () => failed("Stopped.", { passing: false });
      request.onerror = () => failed("The connection broke, or the file cannot be read.", { passing: true });
      request.onload = () => {
        let answer = null;
        try { answer = JSON.parse(request.responseText); } catch (error) { /* said by the status */ }
        const { status } = request;
        if (status >= 200 && status < 300) resolve({ status, answer });
        else failed(sentence(status, answer), { status, passing: status === 408 || status === 429 || (status >= 500 && status !== 507) });
      };
      request.send(body);
    });
  }

  class Job {
    constructor(uploads, file, path, unpack) {
      Object.assign(this, { uploads, file, path, unpack, state: "waiting", sent: 0, why: "", replace: false });
      Object.assign(this, { hash: new Sha256(), hashedBytes: 0, digest: null });
      this.row = make("li");
      this.name = make("span", "name", path);
      this.name.title = path;
      this.shown = make("span", "state");
      this.bar = make("progress");
      this.bar.setAttribute("aria-label", path);
      this.problem = make("span", "why");
      this.row.append(this.name, this.shown, this.bar, this.problem);
    }

    progressed(loaded) {
      this.sent = Math.min(this.file.size, loaded);
      this.uploads.draw();
    }

    // The digest of the bytes up to `end` is part of `hash`; an earlier attempt may have come further.
    async hashTo(end) {
      while (this.hashedBytes < end) {
        if (this.uploads.stopped) throw new Error("Stopped.");
        const next = Math.min(end, this.hashedBytes + HASHED_BYTES);
        this.hash.update(await this.read(this.hashedBytes, next));
        this.hashedBytes = next;
      }
    }

    async read(start, end) {
      try {
        return new Uint8Array(await this.file.slice(start, end).arrayBuffer());
      } catch (error) {
        throw new Error("The file cannot be read. If it was changed, choose it again.");
      }
    }

    // The service stores the file only if it has received exactly these bytes.
    async digestHeader() {
      await this.hashTo(this.file.size);
      this.digest ??= this.hash.digest();
      return { "Repr-Digest": `sha-256=:${btoa(String.fromCharCode(...this.digest))}:` };
    }

    async send() {
      const { name } = this.uploads;
      if (this.unpack) {
        const shown = encodeURIComponent(this.file.name).replace(/['()*]/g, (one) => `%${one.charCodeAt(0).toString(16)}`);
        const headers = { "Content-Disposition": `attachment; filename*=UTF-8''${shown}`, ...await this.digestHeader() };
        const { answer } = await this.patiently(() => put(this, `${ofDataset(name)}?unpack=1`, this.file, headers));
        if (answer && answer.num_skipped) this.why = `Skipped links and devices: ${answer.num_skipped}.`;
      } else {
        if (this.file.size > LARGE_BYTES && !this.replace && await this.isThere()) throw Object.assign(new Error(""), { status: 412 });
        const headers = { ...(this.replace ? {} : { "If-None-Match": "*" }), ...await this.digestHeader() };
        await this.patiently(() => put(this, ofFile(name, this.path), this.file, headers));
      }
    }

    async patiently(attempt) {
      for (let number = 0; ; number += 1) {
        try {
          return await attempt();
        } catch (error) {
          if (!error.passing || number >= WAITS_MS.length || this.uploads.stopped) throw error;
          await new Promise((resolve) => { setTimeout(resolve, WAITS_MS[number]); });
        }
      }
    }

    async isThere() {
      const answer = await ask("GET", `${ofDataset(this.uploads.name)}/files?limit=1&prefix=${encodeURIComponent(this.path)}`);
      return answer.files.some((one) => one.path === this.path);
    }

    draw() {
      const percent = this.file.size ? Math.floor((100 * this.sent) / this.file.size) : 100;
      const words = { waiting: "waiting", done: "done", failed: "failed", there: "there already" };
      this.shown.textContent = words[this.state] || (this.sent < this.file.size ? `${percent} % of ${bytes(this.file.size)}` : "storing\u2026");
      this.bar.hidden = this.state === "done" || this.state === "there";
      this.bar.max = Math.max(1, this.file.size);
      this.bar.value = this.file.size ? this.sent : Number(this.state === "done");
      this.row.className = this.state;
      this.problem.textContent = this.why;
    }
  }

  // All uploads into one dataset since the page was opened.
  class Uploads {
    constructor(name, root, onIdle) {
      Object.assign(this, { name, root, onIdle, running: 0, stopped: false, timer: 0 });
      this.forget();
      part(root, "again").onclick = () => this.repeat((job) => job.state === "failed");
      part(root, "replace").onclick = () => this.repeat((job) => job.state === "there", true);
      part(root, "stop").onclick = () => this.stop();
      part(root, "clear").onclick = () => { this.forget(); this.drawNow(); };
      addEventListener("online", () => this.repeat((job) => job.state === "failed" && job.passing));
    }

    forget() {
      Object.assign(this, { jobs: [], queue: [], totalBytes: 0, sentBytes: 0, done: 0, failed: 0, there: 0 });
      part(this.root, "jobs").replaceChildren();
    }

    get busy() { return this.running > 0 || this.queue.length > 0; }

    add(list, unpack) {
      if (!this.busy) this.stopped = false;
      for (const { file, path } of list) {
        const job = new Job(this, file, path, unpack && ARCHIVE.test(file.name));
        this.jobs.push(job);
        this.queue.push(job);
        this.totalBytes += file.size;
      }
      this.pump();
    }

    pump() {
      while (this.running < AT_ONCE && this.queue.length && !this.stopped) this.run(this.queue.shift());
      this.draw();
    }

    async run(job) {
      this.running += 1;
      Object.assign(job, { state: "sending", why: "", passing: false });
      this.show(job);
      try {
        await job.send();
        Object.assign(job, { state: "done", sent: job.file.size });
        this.done += 1;
      } catch (error) {
        const there = error.status === 412 && !job.replace;
        Object.assign(job, { state: there ? "there" : "failed", why: there ? "" : error.message, passing: error.passing });
        if (there) { this.there += 1; job.sent = job.file.size; } else this.failed += 1;
        const button = make("button", "small", there ? "Replace" : "Try again");
        button.onclick = () => this.repeat((one) => one === job, there);
        job.problem.after(button);
        job.button = button;
        part(this.root, "jobs").prepend(job.row);
      }
      this.running -= 1;
      this.pump();
      if (!this.busy) {
        this.drawNow();
        this.onIdle();
      }
    }

    show(job) {
      const list = part(this.root, "jobs");
      list.append(job.row);
      if (list.childElementCount > MOST_ROWS) (list.querySelector(".done") || list.lastElementChild).remove();
    }

    repeat(which, replace = false) {
      const chosen = this.jobs.filter(which);
      if (!this.busy) this.stopped = false;
      for (const job of chosen) {
        if (job.state === "there") this.there -= 1; else this.failed -= 1;
        job.button?.remove();
        Object.assign(job, { state: "waiting", replace: job.replace || replace, sent: 0, why: "" });
        this.queue.push(job);
      }
      this.pump();
    }

    stop() {
      this.stopped = true;
      for (const job of this.queue.splice(0)) {
        Object.assign(job, { state: "failed", why: "Stopped." });
        this.failed += 1;
      }
      for (const job of this.jobs) if (job.state === "sending") job.request?.abort();
      this.draw();
    }

    draw() {
      if (!this.timer) this.timer = setTimeout(() => this.drawNow(), 80);
    }

    drawNow() {
      clearTimeout(this.timer);
      this.timer = 0;
      this.root.hidden = !this.jobs.length;
      let sent = 0;
      for (const job of this.jobs) {
        sent += job.sent;
        if (job.row.isConnected) job.draw();
      }
      const all = part(this.root, "all");
      all.max = Math.max(1, this.totalBytes);
      all.value = this.totalBytes ? sent : Number(!this.busy);
      const words = [`${this.done.toLocaleString("en")} of ${files(this.jobs.length)}`, `${bytes(sent)} of ${bytes(this.totalBytes)}`];
      if (this.there) words.push(`${this.there.toLocaleString("en")} there already`);
      if (this.failed) words.push(`${this.failed.toLocaleString("en")} failed`);
      part(this.root, "all-text").textContent = words.join(" \u00b7 ");
      const unseen = this.jobs.some((job) => job.state === "failed" && !job.row.isConnected);
      part(this.root, "again").hidden = this.failed < 2 && !unseen;
      part(this.root, "replace").hidden = this.there < 2;
      part(this.root, "stop").hidden = !this.busy;
      part(this.root, "clear").hidden = this.busy;
    }
  }

  // Dropped files with their paths below the dropped folder. The browser provides them only during the event.
  async function dropped(transfer) {
    const entries = [...transfer.items].filter((item) => item.kind === "file").map((item) => item.webkitGetAsEntry?.() || item.getAsFile());
    const found = [];
    const walk = async (entry, above) => {
      if (!entry) return;
      if (entry instanceof File) found.push({ file: entry, path: above + entry.name });
      else if (entry.isFile) {
        const file = await new Promise((resolve, reject) => { entry.file(resolve, reject); });
        found.push({ file, path: above + entry.name });
      } else {
        const reader = entry.createReader();
        for (;;) { // a browser hands out a hundred at a time
          const some = await new Promise((resolve, reject) => { reader.readEntries(resolve, reject); });
          if (!some.length) return;
          for (const one of some) await walk(one, `${above}${entry.name}/`);
        }
      }
    };
    for (const entry of entries) await walk(entry, "");
    return found;
  }

  // ---- the code to train -------------------------------------------------------------------------------------------

  function trainingCode(template, name) {
    const secure = location.protocol === "https:";
    const port = location.port || (secure ? "443" : "80");
    const code = template.replaceAll("datasets://HOST:PORT/NAME", () => `datasets://${location.hostname}:${port}/${name}`);
    return secure ? code.replace('"secure": False', '"secure": True') : code;
  }

  function colour(element, code) {
    const tokens = /("(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')|(#.*)|\b(import|from|as|def|return|for|in|if|print)\b/g;
    let end = 0;
    element.replaceChildren();
    for (const match of code.matchAll(tokens)) {
      const kind = match[1] ? "string" : match[2] ? "note" : "word";
      element.append(code.slice(end, match.index), make("span", kind, match[0]));
      end = match.index + match[0].length;
    }
    element.append(code.slice(end));
  }

  async function copy(text) {
    if (navigator.clipboard && isSecureContext) {
      await navigator.clipboard.writeText(text);
      return;
    }
    const area = make("textarea", "unseen");
    area.value = text;
    document.body.append(area);
    area.select();
    const copied = document.execCommand("copy"); // the only way where the page comes by http
    area.remove();
    if (!copied) throw new Error("The browser does not let this page copy: mark the lines by hand.");
  }

  // ---- one dataset -------------------------------------------------------------------------------------------------

  const KINDS = { shards: "shards", images: "images", files: "files" };

  class DatasetView {
    constructor(name) {
      this.name = name;
      this.prefix = "";
      this.root = make("div");
      this.root.append(copyOf("dataset-view"));
      const of = (what) => part(this.root, what);
      this.uploads = new Uploads(name, of("uploads"), () => this.uploaded());
      for (const what of ["name", "above"]) of(what).textContent = name;
      of("download").href = at(ofDataset(name));
      of("delete").onclick = () => this.removeAll();
      for (const what of ["files", "folder"]) {
        of(what).onchange = (event) => {
          const list = [...event.target.files].map((file) => ({ file, path: file.webkitRelativePath || file.name }));
          event.target.value = ""; // so that choosing the same again is a change
          this.upload(list);
        };
      }
      of("more").onclick = () => this.load(this.next);
      of("copy").onclick = () => copy(this.code).then(() => say("Copied."), (error) => say(error.message));
    }

    upload(list) {
      const wanted = list.filter(({ file }) => !LEFTOVERS.has(file.name));
      const leftOut = list.length - wanted.length;
      const unpack = part(this.root, "unpack").checked;
      this.uploads.add(wanted.map(({ file, path }) => ({ file, path: this.prefix + path })), unpack);
      say(`Uploading ${files(wanted.length)}${leftOut ? `; ${files(leftOut)} of the operating system left out` : ""}.`);
    }

    uploaded() {
      const { done, failed, stopped } = this.uploads;
      if (stopped) say("Stopped.");
      else say(failed ? `${files(done)} uploaded, ${failed.toLocaleString("en")} failed.` : `${files(done)} uploaded.`);
      this.refresh();
    }

    refresh() {
      this.load();
      this.summarize();
    }

    show(prefix) {
      this.prefix = prefix;
      part(this.root, "into").textContent = prefix ? `Drop files or folders here: they go into ${prefix}` : "Drop files or folders here, or anywhere on this page.";
      const crumbs = part(this.root, "crumbs");
      crumbs.replaceChildren();
      if (prefix) {
        let above = "";
        crumbs.append(link(this.name, `#${encodeURIComponent(this.name)}`));
        for (const folder of prefix.slice(0, -1).split("/")) {
          above += `${folder}/`;
          crumbs.append(make("span", "", "/"), link(folder, `#${encodeURIComponent(this.name)}/${encoded(above)}`));
        }
      }
      this.load();
    }

    async load(after = "") {
      const turn = Symbol("turn");
      this.turn = turn;
      const query = `recursive=0&limit=${PAGE_FILES}&prefix=${encodeURIComponent(this.prefix)}${after ? `&after=${encodeURIComponent(after)}` : ""}`;
      let page;
      try {
        page = await ask("GET", `${ofDataset(this.name)}/files?${query}`);
      } catch (error) {
        if (this.turn === turn) this.failed(error);
        return;
      }
      if (this.turn !== turn) return; // somewhere else meanwhile
      const rows = part(this.root, "rows");
      if (!after) rows.replaceChildren();
      rows.append(...page.folders.map((path) => this.folderRow(path)), ...page.files.map((file) => this.fileRow(file)));
      this.next = page.next;
      part(this.root, "more").hidden = page.next === null;
      const empty = !rows.childElementCount;
      part(this.root, "empty").hidden = !empty;
      this.root.querySelector("table").hidden = empty;
      part(this.root, "curl").textContent = `# with -u :TOKEN if the service has one\ncurl -T my_file.csv ${location.origin}${ofFile(this.name, `${this.prefix}my_file.csv`)}`;
    }

    folderRow(path) {
      const row = make("tr");
      const name = make("td", "folder");
      const size = make("td", "number");
      name.append(link(path.slice(this.prefix.length), `#${encodeURIComponent(this.name)}/${encoded(path)}`));
      name.title = path;
      row.append(name, size, make("td", "when"), make("td"));
      return row;
    }

    fileRow(file) {
      const row = make("tr");
      const name = make("td");
      const download = link(file.path.slice(this.prefix.length), at(ofFile(this.name, file.path)));
      download.download = "";
      name.title = file.path;
      name.append(download);
      const when = make("td", "when", file.modified ? new Date(file.modified).toLocaleDateString(undefined, { day: "numeric", month: "short", year: "numeric" }) : "");
      if (file.modified) when.title = new Date(file.modified).toLocaleString();
      const actions = make("td");
      const remove = make("button", "", "\u2715");
      remove.setAttribute("aria-label", `Delete ${file.path}`);
      remove.title = "Delete";
      remove.onclick = () => this.remove(file.path);
      actions.append(remove);
      row.append(name, make("td", "number", bytes(file.size)), when, actions);
      return row;
    }

    async remove(path) {
      if (!await confirmed("Delete this file?", path)) return;
      try {
        await ask("DELETE", ofFile(this.name, path));
        say(`Deleted ${path}.`);
      } catch (error) {
        say(error.message);
      }
      this.refresh();
    }

    async removeAll() {
      if (!await confirmed("Delete the whole dataset?", "All of its files are deleted. This cannot be undone.", this.name)) return;
      try {
        await ask("DELETE", ofDataset(this.name));
        views.delete(this.name);
        say(`Deleted ${this.name}.`);
        location.hash = "";
      } catch (error) {
        say(error.message);
      }
    }

    failed(error) {
      part(this.root, "looking").hidden = true;
      const text = error.status === 404 ? `There is no dataset ${this.name}. Perhaps it was deleted.` : error.message;
      this.problem(text);
    }

    problem(text) {
      const problems = part(this.root, "problems");
      problems.textContent = text;
      problems.hidden = !text;
    }

    async summarize() {
      const turn = Symbol("turn");
      this.summing = turn;
      let summary;
      try {
        summary = await ask("GET", `${ofDataset(this.name)}/summary`);
      } catch (error) {
        if (this.summing === turn) this.failed(error);
        return;
      }
      if (this.summing !== turn) return;
      const about = summary.complete ? "" : "more than ";
      const words = [`${about}${files(summary.num_files)}`, `${about}${bytes(summary.num_bytes)}`];
      if (summary.num_shards) words.push(counted(summary.num_shards, "shard", "shards"));
      if (summary.num_samples !== null && summary.num_samples > 0) words.push(counted(summary.num_samples, "sample", "samples"));
      part(this.root, "facts").textContent = words.join(" \u00b7 ");
      part(this.root, "download").hidden = !summary.num_files;
      part(this.root, "looking").hidden = true;
      this.problem(summary.problems.join("\n"));
      this.drawLabels(summary);
      part(this.root, "train").hidden = !summary.code;
      this.code = trainingCode(summary.code, this.name);
      part(this.root, "shares").textContent = summary.kind === "images"
        ? "Workers share the files by themselves; for several ranks pass a DistributedSampler."
        : "Workers and ranks share the files by themselves.";
      colour(part(this.root, "code"), this.code);
      await this.drawSheet(summary, turn);
    }

    drawLabels(summary) {
      const labels = Object.entries(summary.classes).sort((one, other) => other[1] - one[1]);
      part(this.root, "labels").hidden = !labels.length;
      const most = labels.length ? labels[0][1] : 1;
      const of = summary.kind === "shards" && !summary.classes_complete ? ` among the samples of ${counted(summary.num_shards_seen, "shard", "shards")} that were looked at` : "";
      const shown = summary.num_classes > labels.length ? `, of which ${labels.length.toLocaleString("en")} are known here` : "";
      part(this.root, "labels-text").textContent = `${counted(summary.num_classes, "label", "labels")}${of}${shown}`;
      const bars = part(this.root, "bars");
      const draw = (some) => bars.replaceChildren(...some.map(([label, count]) => {
        const row = make("li");
        const name = make("span", "name", label);
        name.title = label;
        const track = make("span", "track");
        const fill = make("div", "fill");
        fill.style.width = `${(100 * count) / most}%`;
        track.append(fill);
        row.append(name, track, make("span", "count", count.toLocaleString("en")));
        return row;
      }));
      draw(labels.slice(0, FEW_LABELS));
      const all = part(this.root, "all-labels");
      all.hidden = labels.length <= FEW_LABELS;
      all.textContent = `Show all ${labels.length.toLocaleString("en")}`;
      all.onclick = () => { draw(labels); all.hidden = true; };
    }

    async drawSheet(summary, turn) {
      const panel = part(this.root, "pictures");
      const sheet = part(this.root, "sheet");
      const image = sheet.querySelector("img");
      panel.hidden = !summary.has_pictures;
      if (!summary.has_pictures) return;
      const response = await fetch(at(`${ofDataset(this.name)}/sheet.png`), { cache: "no-cache" }).catch(() => null);
      if (this.summing !== turn) return;
      if (!response || !response.ok) {
        panel.hidden = true;
        return;
      }
      const blob = URL.createObjectURL(await response.blob());
      image.onload = () => {
        sheet.style.aspectRatio = `${image.naturalWidth} / ${image.naturalHeight}`;
        sheet.classList.add("there");
      };
      if (this.blob) URL.revokeObjectURL(this.blob);
      this.blob = blob;
      image.src = blob;
      sheet.href = blob;
    }
  }

  // ---- all datasets ------------------------------------------------------------------------------------------------

  class ListView {
    constructor() {
      this.root = make("div");
      this.root.append(copyOf("list-view"));
      this.root.querySelector("form").onsubmit = (event) => {
        event.preventDefault();
        this.create();
      };
      const input = this.root.querySelector("#new-name");
      input.oninput = () => { this.fault(""); };
      input.oninvalid = (event) => {
        event.preventDefault();
        this.fault(input.validity.valueMissing ? "A dataset needs a name." : `${input.title}.`);
      };
      part(this.root, "curl").textContent = `# with -u :TOKEN if the service has one\ncurl ${location.origin}/datasets -H "Content-Type: application/json" -d '{"name": "my_dataset"}'\ncurl -T my_file.csv ${location.origin}/datasets/my_dataset/files/my_file.csv`;
      this.waiting = [];
      this.asking = 0;
      this.seen = new IntersectionObserver((found) => {
        for (const { isIntersecting, target } of found) {
          if (!isIntersecting) continue;
          this.seen.unobserve(target);
          this.waiting.push(target);
        }
        this.pump();
      }, { rootMargin: "200px" });
    }

    fault(text) {
      this.root.querySelector("#new-fault").textContent = text;
    }

    async create() {
      const name = this.root.querySelector("#new-name").value;
      try {
        await ask("POST", "/datasets", { name });
        this.root.querySelector("form").reset();
        location.hash = encodeURIComponent(name);
      } catch (error) {
        this.fault(error.message);
      }
    }

    async load() {
      const count = part(this.root, "count");
      let found;
      try {
        found = (await ask("GET", "/datasets")).datasets;
      } catch (error) {
        count.textContent = error.message;
        return;
      }
      count.textContent = found.length ? counted(found.length, "dataset", "datasets") : "Files for your training jobs, behind one address";
      part(this.root, "empty").hidden = found.length > 0;
      this.waiting.length = 0;
      part(this.root, "cards").replaceChildren(...found.map(({ name }) => {
        const card = copyOf("card").firstElementChild;
        card.querySelector("a").href = `#${encodeURIComponent(name)}`;
        card.querySelector(".name").textContent = name;
        card.dataset.name = name;
        this.seen.observe(card);
        return card;
      }));
    }

    async pump() {
      while (this.asking < AT_ONCE && this.waiting.length) {
        this.asking += 1;
        this.fill(this.waiting.shift()).finally(() => { this.asking -= 1; this.pump(); });
      }
    }

    async fill(card) {
      const facts = card.querySelector(".facts");
      try {
        const summary = await ask("GET", `${ofDataset(card.dataset.name)}/summary?inside=0`);
        const about = summary.complete ? "" : "more than ";
        facts.textContent = summary.num_files ? `${about}${files(summary.num_files)} \u00b7 ${bytes(summary.num_bytes)}` : "empty";
        card.querySelector(".kind").textContent = summary.num_files ? KINDS[summary.kind] || "" : "";
      } catch (error) {
        facts.textContent = error.status === 404 ? "deleted" : "not counted";
        facts.title = error.message;
      }
    }
  }

  // ---- which of them -----------------------------------------------------------------------------------------------

  const views = new Map(); // of datasets that were opened: uploads go on while another one is looked at
  const list = new ListView();
  let current = null;

  function decoded(text) {
    try { return decodeURIComponent(text); } catch (error) { return text; }
  }

  function route(first) {
    const [name, ...folders] = location.hash.slice(1).split("/").map(decoded);
    const content = document.getElementById("content");
    const before = current;
    if (!name) {
      current = list;
      list.load();
    } else {
      if (!views.has(name)) views.set(name, new DatasetView(name));
      current = views.get(name);
      const prefix = folders.filter(Boolean).map((folder) => `${folder}/`).join("");
      current.show(prefix);
      if (current !== before) current.summarize();
    }
    document.title = name ? `${name} \u2013 Datasets` : "Datasets";
    if (current !== before) {
      content.replaceChildren(current.root);
      scrollTo(0, 0);
      if (!first) content.focus();
    }
  }

  let depth = 0; // of elements below the pointer that carries files
  const carries = (event) => event.dataTransfer && [...event.dataTransfer.types].includes("Files");
  const over = () => document.body.classList.toggle("over", depth > 0 && current !== list);
  addEventListener("dragenter", (event) => { if (carries(event)) { depth += 1; over(); } });
  addEventListener("dragleave", (event) => { if (carries(event)) { depth = Math.max(0, depth - 1); over(); } });
  addEventListener("dragover", (event) => { if (carries(event)) event.preventDefault(); });
  addEventListener("drop", (event) => {
    if (!carries(event)) return;
    event.preventDefault();
    depth = 0;
    over();
    if (current === list) {
      say("Open a dataset first, then drop files into it.");
      return;
    }
    const view = current;
    dropped(event.dataTransfer).then((found) => view.upload(found), (error) => say(`The dropped files cannot be read: ${error.message}`));
  });
  addEventListener("beforeunload", (event) => {
    if ([...views.values()].some((view) => view.uploads.busy)) event.preventDefault();
  });
  addEventListener("hashchange", () => route(false));
  // drawn here, so that the content security policy needs no data: for it
  const icon = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16"><rect width="16" height="16" rx="4" fill="#c2370f"/><path d="M4 5h8M4 8h8M4 11h5" stroke="#fff" stroke-width="1.6" stroke-linecap="round"/></svg>`;
  document.getElementById("icon").href = URL.createObjectURL(new Blob([icon], { type: "image/svg+xml" }));
  document.getElementById("host").textContent = location.host;
  route(true);
})();
