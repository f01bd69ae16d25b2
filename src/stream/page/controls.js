/* The fields. Each follows the server until a person touches it, and again once what was sent has been answered. */

const MOST_PROMPTS = 8;

const fields = {
  prompts: [], /* as the server has them */
  dirty: false, /* the prompts were edited and not applied */
  sent: null, /* prompts that wait for their answer */
  held: new Map(), /* fields that were just sent: until when they do not follow */

  follow(controls) {
    if (!this.dirty && JSON.stringify(controls.prompt) !== JSON.stringify(this.prompts)) this.showPrompts(controls.prompt);
    this.prompts = controls.prompt;
    const paused = controls.pause;
    at("pause").setAttribute("aria-pressed", paused);
    at("pause").querySelector("span").textContent = paused ? "Resume" : "Pause";
    at("pause-icon").setAttribute("d", paused ? "M6 4l10 6-10 6z" : "M6 4h3v12H6zM11 4h3v12h-3z");
    this.set("transition", String(controls.transition));
    this.set("kv_bias", String(controls.kv_bias));
    this.set("noise", String(controls.noise));
    this.set("seed", String(controls.seed));
    this.set("steps", controls.steps.join(", "));
    document.querySelectorAll("[data-steps]").forEach((chip) => {
      chip.setAttribute("aria-pressed", evenSteps(Number(chip.dataset.steps)).join() === controls.steps.join());
    });
  },

  set(id, value) {
    const field = at(id);
    if (document.activeElement === field && field.type === "text") return;
    if ((this.held.get(id) ?? 0) > performance.now()) return;
    if (field.type === "range" && Number(value) > Number(field.max)) field.max = value; /* others may set more */
    if (field.value !== value) field.value = value;
    this.tell(id);
  },

  tell(id) {
    const output = document.querySelector(`output[for="${id}"]`);
    if (output === null) return;
    const value = Number(at(id).value);
    fillRange(at(id));
    output.textContent = id === "transition" ? (value === 0 ? "at once" : `${value} chunk${value === 1 ? "" : "s"}`) : value.toFixed(2);
    at(id).setAttribute("aria-valuetext", output.textContent);
  },

  hold(id) {
    this.held.set(id, performance.now() + 1000);
  },

  forget() { /* a refusal: show what the server has */
    this.held.clear();
  },

  /* Prompts that were refused stay as they were typed, to be mended. */
  answered(well) {
    if (well && this.sent !== null) {
      this.prompts = this.sent;
      this.setDirty(false);
    }
    this.sent = null;
    if (!well) this.forget();
  },

  /* ---- prompts ---- */

  showPrompts(prompts) {
    at("prompts").replaceChildren();
    prompts.forEach((prompt) => this.addPrompt(prompt));
    this.setDirty(false);
  },

  addPrompt({ text, weight }) {
    const item = document.createElement("li");
    const area = document.createElement("textarea");
    area.rows = 2;
    area.maxLength = 4096;
    area.placeholder = "What should be seen";
    area.value = text;
    const line = document.createElement("div");
    line.className = "weight";
    const label = document.createElement("label");
    const slider = document.createElement("input");
    const output = document.createElement("output");
    const remove = document.createElement("button");
    slider.type = "range";
    slider.min = "0";
    slider.max = String(Math.max(2, weight));
    slider.step = "0.05";
    slider.value = String(weight);
    label.textContent = "weight";
    remove.type = "button";
    remove.className = "quiet";
    remove.textContent = "×";
    const tell = () => { output.textContent = Number(slider.value).toFixed(2); fillRange(slider); };
    tell();
    area.oninput = () => this.setDirty(true);
    slider.oninput = () => { tell(); this.setDirty(true); };
    area.onkeydown = (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
        event.preventDefault();
        this.apply();
      }
    };
    remove.onclick = () => { item.remove(); this.number(); this.setDirty(true); };
    line.append(label, slider, output, remove);
    item.append(area, line);
    at("prompts").append(item);
    this.number();
    return area;
  },

  number() {
    const items = [...at("prompts").children];
    items.forEach((item, i) => {
      item.querySelector("textarea").setAttribute("aria-label", `Prompt ${i + 1}`);
      item.querySelector("input").id = `weight-${i}`;
      item.querySelector("input").setAttribute("aria-label", `Weight of prompt ${i + 1}`);
      item.querySelector("label").htmlFor = `weight-${i}`;
      item.querySelector("button").setAttribute("aria-label", `Remove prompt ${i + 1}`);
    });
    at("add").disabled = items.length >= MOST_PROMPTS;
  },

  setDirty(dirty) {
    this.dirty = dirty;
    this.sent = null;
    at("apply").disabled = !dirty;
    at("revert").hidden = !dirty;
  },

  apply() {
    const prompt = [...at("prompts").children].map((item) => ({
      text: item.querySelector("textarea").value, weight: Number(item.querySelector("input").value),
    }));
    this.setDirty(true);
    if (send({ prompt, transition: Number(at("transition").value) })) this.sent = prompt;
  },
};

/* How much of a slider's track is behind its thumb, whose centre does not reach the ends. */
function fillRange(slider) {
  const part = (slider.value - slider.min) / (slider.max - slider.min);
  slider.style.setProperty("--fill", `calc(8px + ${part} * (100% - 16px))`);
}

function evenSteps(count) {
  return Array.from({ length: count }, (_, i) => Math.round(1000 * (count - i) / count));
}

function bindFields() {
  for (const id of ["transition", "kv_bias", "noise"]) {
    let timer = 0;
    at(id).oninput = () => { /* while it is dragged, ten changes a second are enough */
      fields.tell(id);
      fields.hold(id);
      if (timer !== 0) return;
      timer = setTimeout(() => {
        timer = 0;
        fields.hold(id);
        send({ [id]: Number(at(id).value) });
      }, 100);
    };
  }
  const onEnter = (id, act) => {
    at(id).onchange = () => { fields.hold(id); act(at(id).value.trim()); };
    at(id).onkeydown = (event) => { if (event.key === "Enter") { event.preventDefault(); at(id).blur(); } };
  };
  onEnter("seed", (value) => { /* as text: a seed may be larger than a number of this language holds */
    if (/^\d+$/.test(value)) send(`{"seed": ${value.replace(/^0+(?=\d)/, "")}}`);
    else { complain("A seed is a whole number, 0 or more."); fields.forget(); }
  });
  onEnter("steps", (value) => send({ steps: value.split(/[\s,]+/).filter(Boolean).map(Number) }));
  document.querySelectorAll("[data-steps]").forEach((chip) => {
    chip.onclick = () => send({ steps: evenSteps(Number(chip.dataset.steps)) });
  });
  at("dice").onclick = () => send({ seed: Math.floor(Math.random() * 1e9) });
  at("add").onclick = () => { fields.addPrompt({ text: "", weight: 1 }).focus(); fields.setDirty(true); };
  at("revert").onclick = () => fields.showPrompts(fields.prompts);
  at("controls").onsubmit = (event) => { event.preventDefault(); fields.apply(); };
}

/* ---- buttons and keys ---- */

const actions = {
  pause: () => send({ pause: !(state?.controls.pause ?? false) }),
  cut: () => send({ cut: true }),
  record,
  full: () => (document.fullscreenElement ? document.exitFullscreen() : at("screen").requestFullscreen()),
};

function bindButtons() {
  Object.entries(actions).forEach(([id, act]) => { at(id).onclick = act; });
  at("again").onclick = () => connect();
  at("problem").querySelector("button").onclick = () => { at("problem").hidden = true; };
  document.addEventListener("keydown", (event) => {
    const typing = event.target.closest("textarea, input[type=text]") !== null;
    if (typing || event.ctrlKey || event.metaKey || event.altKey || event.repeat) return;
    const keys = { c: "cut", r: "record", f: "full" };
    const id = event.key === " " && event.target.closest("button, input") === null ? "pause" : keys[event.key.toLowerCase()];
    if (id === undefined || at(id).disabled) return;
    event.preventDefault();
    actions[id]();
  });
}

/* Colours: as the system, or as chosen here. */
function bindTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosen = localStorage.getItem("carry-theme") ?? "system";
  const show = () => {
    document.documentElement.dataset.theme = chosen === "system" ? (system.matches ? "dark" : "light") : chosen;
    at("theme").setAttribute("aria-label", `Colours: ${chosen === "system" ? "as the system" : chosen}`);
    at("theme").title = at("theme").getAttribute("aria-label");
    charts.forEach((chart) => chart.draw());
  };
  system.addEventListener("change", show);
  at("theme").onclick = () => {
    chosen = { system: system.matches ? "light" : "dark", light: system.matches ? "dark" : "system",
      dark: system.matches ? "system" : "light" }[chosen];
    localStorage.setItem("carry-theme", chosen);
    show();
  };
  show();
}

const charts = makeCharts(at("charts"));
bindFields();
bindButtons();
bindTheme();
connect();
