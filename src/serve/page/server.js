/* Requests to the server, and what goes wrong in words. */

const apiKey = {
  get: () => sessionStorage.getItem("carry.key") ?? localStorage.getItem("carry.key") ?? "",
  set(key, isKept) {
    sessionStorage.setItem("carry.key", key);
    if (isKept) localStorage.setItem("carry.key", key);
    else localStorage.removeItem("carry.key");
  },
};

/* status 0: no response. wait: seconds until another try makes sense. */
class Problem extends Error {
  constructor(status, message, wait = 0) {
    super(message);
    this.status = status;
    this.wait = wait;
  }
}

const unreachable = "The server does not answer. Is carry serve still running?";

async function problemOf(response) {
  let said = "";
  try {
    said = (await response.json()).error?.message ?? "";
  } catch {
    // not JSON: the status alone has to do
  }
  const wait = Number(response.headers.get("Retry-After")) || 0, also = said ? ` The server says: ${said}` : "";
  switch (response.status) {
    case 401: return new Problem(401, apiKey.get() ? "The server does not accept this API key." : "The server asks for an API key.");
    case 413: return new Problem(413, "The conversation is larger than the server accepts.");
    case 429: return new Problem(429, `The server is busy.${also}`, wait);
    case 503: return new Problem(503, `The server is not ready.${also}`, wait);
    default: return new Problem(response.status, said ? `The server refused the request: ${said}` : `The server answered with status ${response.status}.`);
  }
}

async function ask(path, body, signal) {
  const headers = body ? { "Content-Type": "application/json" } : {}, key = apiKey.get();
  if (key) headers.Authorization = `Bearer ${key}`;
  let response;
  try {
    response = await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw error.name === "TypeError" && /headers/i.test(error.message) // a key with other characters than ASCII
      ? new Problem(401, "The API key has characters that no key has.") : new Problem(0, unreachable);
  }
  if (!response.ok) throw await problemOf(response);
  return response;
}

/* The data of server-sent events, one by one. */
async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Problem(0, "The answer was cut off: the connection to the server was lost.");
    }
    if (part.done) return;
    const lines = (rest + part.value).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line.startsWith("data: ")) yield line.slice(6);
  }
}

/* Streams an answer: onPart(delta, choice) for each part. Resolves to the usage, or null if the server sent none. */
async function streamAnswer(body, signal, onPart) {
  const response = await ask("/v1/chat/completions", { ...body, stream: true, stream_options: { include_usage: true } }, signal);
  let usage = null;
  for await (const data of eventsOf(response)) {
    if (data === "[DONE]") return usage;
    const event = JSON.parse(data);
    if (event.error) throw new Problem(500, `The server could not go on: ${event.error.message}`);
    usage = event.usage ?? usage;
    if (event.choices?.[0]) onPart(event.choices[0].delta ?? {}, event.choices[0]);
  }
  throw new Problem(0, "The answer was cut off: the connection to the server ended.");
}
