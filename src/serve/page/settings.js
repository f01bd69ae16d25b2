/* System prompt of the conversation, sampling of all, API key. */

const numbers = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];
const names = { temperature: "Temperature", top_p: "Top p", top_k: "Top k", min_p: "Min p", max_tokens: "Max tokens", seed: "Seed" };

/* Fields of the request. Throws a sentence about the first field that does not fit. */
function samplingFields() {
  const fields = {}, thinking = at("set-thinking").value;
  for (const name of numbers) {
    const input = at(`set-${name}`);
    if (!input.validity.valid) {
      const { min, max, step } = input;
      throw new Error(`${names[name]}: expected ${step === "1" ? "a whole number" : "a number"} from ${Number(min) < 0.001 ? "0" : min} to ${grouped(max)}.`);
    }
    if (input.value !== "") fields[name] = Number(input.value);
  }
  if (thinking) fields.chat_template_kwargs = { enable_thinking: thinking === "on" };
  const more = at("set-more").value.trim();
  if (!more) return fields;
  let read;
  try {
    read = JSON.parse(more);
  } catch (error) {
    throw new Error(`More fields: this is not JSON (${error.message}).`);
  }
  if (read === null || typeof read !== "object" || Array.isArray(read)) throw new Error("More fields: expected a JSON object.");
  return { ...fields, ...read };
}

/* The fields, or null with the panel open and its problem shown. */
function checkedSampling() {
  try {
    const fields = samplingFields();
    at("settings-problem").hidden = true;
    return fields;
  } catch (error) {
    at("settings-problem").textContent = error.message;
    at("settings-problem").hidden = false;
    return null;
  }
}

function saveSettings() {
  const kept = { thinking: at("set-thinking").value, more: at("set-more").value };
  for (const name of numbers) kept[name] = at(`set-${name}`).value;
  checkedSampling();
  try {
    localStorage.setItem("carry.settings", JSON.stringify(kept));
  } catch {
    toast("The browser does not keep the settings: its storage is full.");
  }
}

function loadSettings() {
  let kept = {};
  try {
    kept = JSON.parse(localStorage.getItem("carry.settings")) ?? {};
  } catch {
    // settings of another version
  }
  for (const name of [...numbers, "thinking", "more"]) at(`set-${name}`).value = kept[name] ?? "";
  at("more-box").open = Boolean(kept.more);
}

function showSettings(isShown) {
  at("settings").hidden = !isShown;
  at("settings-open").setAttribute("aria-expanded", String(isShown));
  document.body.classList.toggle("settings-shown", isShown);
  at("shade").hidden = !(isShown && isNarrow());
  if (isShown) at("system").focus();
  else at("settings-open").focus();
}

/* Asks for the API key; resolves to false if it was not given. */
let keyAsked = null;
function askForKey(sentence) {
  if (keyAsked) return keyAsked.promise;
  keyAsked = {};
  keyAsked.promise = new Promise((resolve) => { keyAsked.resolve = resolve; });
  if (sentence) at("key-text").firstChild.data = `${sentence} The key is the first line of the file given to `;
  at("key").value = apiKey.get();
  at("key-kept").checked = localStorage.getItem("carry.key") !== null;
  at("key-dialog").showModal();
  at("key").select();
  return keyAsked.promise;
}

function watchSettings() {
  at("settings").addEventListener("input", (event) => {
    if (event.target.id === "system") act.setSystem(event.target.value);
    else saveSettings();
  });
  at("settings-open").addEventListener("click", () => showSettings(at("settings").hidden));
  at("settings-close").addEventListener("click", () => showSettings(false));
  at("key-open").addEventListener("click", async () => { if (await askForKey()) connect(); });
  at("key-cancel").addEventListener("click", () => at("key-dialog").close());
  at("key-form").addEventListener("submit", (event) => {
    event.preventDefault();
    apiKey.set(at("key").value.trim(), at("key-kept").checked);
    at("key-dialog").close("given");
  });
  at("key-dialog").addEventListener("close", () => {
    const asked = keyAsked;
    keyAsked = null;
    asked?.resolve(at("key-dialog").returnValue === "given");
    at("key-dialog").returnValue = "";
  });
}
