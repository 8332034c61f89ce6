"use strict";
// The page of `assay serve`. Texts reach the page as text only, never as HTML.

const at = (id) => document.getElementById(id);
const number = new Intl.NumberFormat("en");
const WORDS_SHOWN = 8;
const INVITATION = "Give an image, and the images that are most like it appear here.";

/** What is shown now: the query, its matches so far, and the request that is under way. */
const state = {
  facts: null,
  query: null, // {file}, {file, refused} or {id}; what else is asked for stands in the form
  version: null,
  shown: 0,
  request: null,
  past: [], // queries by their place in the history of the browser
};

/** Returns an element with properties, attributes in `attributes`, and children. */
function make(name, properties = {}, ...children) {
  const { attributes = {}, ...own } = properties;
  const made = Object.assign(document.createElement(name), own);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

const percent = (share) => {
  const rounded = Math.round(share * 100);
  if (rounded === 100 && share < 1) return "over 99%";
  return rounded === 0 && share > 0 ? "under 1%" : `${rounded}%`;
};
const plural = (count, one, many = `${one}s`) =>
  `${number.format(count)} ${count === 1 ? one : many}`;
const megabytes = (bytes) => `${number.format(Math.round(bytes / 1e5) / 10)} MB`;
const thumbnailOf = (id) => `/api/thumbnail?id=${encodeURIComponent(id)}`;

// --- Requests ------------------------------------------------------------------------------------

/** A request that failed, in words. */
class Failure extends Error {
  constructor(error, remedy, canRetry) {
    super(error);
    this.remedy = remedy;
    this.canRetry = canRetry;
  }
}

/** Returns the JSON that the service answers; throws a `Failure` in words. */
async function ask(address, options = {}) {
  let response;
  try {
    response = await fetch(address, { credentials: "same-origin", ...options });
  } catch (problem) {
    if (problem.name === "AbortError") throw problem;
    throw new Failure("The service does not answer.", "Check that it is running.", true);
  }
  const document = await response.json().catch((problem) => {
    if (problem.name === "AbortError") throw problem;
    if (response.ok) throw new Failure("The answer was cut short.", "Try again.", true);
    return {};
  });
  if (!response.ok) {
    const error = document.error || `The service answered with status ${response.status}.`;
    throw new Failure(sentence(error), sentence(document.remedy || ""), response.status >= 500);
  }
  return document;
}

/** Returns a text with a capital letter, unless it begins with a name, and a full stop. */
function sentence(text) {
  if (!text) return "";
  const names = [state.query?.file?.name, state.facts?.name].filter(Boolean);
  const named = names.some((name) => text.startsWith(name.slice(0, 80)));
  const whole = named ? text : text[0].toUpperCase() + text.slice(1);
  return /[.!?)]$/.test(whole) ? whole : `${whole}.`;
}

function wanted(skip) {
  const form = new FormData();
  const { file } = state.query;
  if (file) form.append("image", file, file.name || "the pasted image");
  else form.append("id", state.query.id);
  form.append("k", at("count").value);
  form.append("skip", String(skip));
  if (at("precision").value) form.append("min_precision", at("precision").value);
  for (const box of document.querySelectorAll("#columns input:checked")) {
    form.append("where", `${box.dataset.column}=${box.value}`);
  }
  return form;
}

/** Searches from the start, or for the next page. */
async function search({ next = false } = {}) {
  if (!state.query || state.query.refused) return;
  state.request?.abort();
  const request = new AbortController();
  state.request = request;
  at("matches").setAttribute("aria-busy", "true");
  at("status").textContent = "Searching…";
  showFailure(null);
  try {
    const body = wanted(next ? state.shown : 0);
    const answer = await ask("/api/search", { method: "POST", body, signal: request.signal });
    if (next && answer.version !== state.version) {
      await search(); // the index changed: the next page of the old one would not fit
      return;
    }
    if (answer.version !== state.facts?.version) refreshFacts();
    show(answer, next);
  } catch (problem) {
    if (problem.name === "AbortError") return;
    if (!(problem instanceof Failure)) throw problem;
    at("status").textContent = "";
    if (!next) show(null, false);
    showFailure(problem, next);
  } finally {
    if (state.request === request) at("matches").removeAttribute("aria-busy");
  }
}

// --- Matches -------------------------------------------------------------------------------------

function show(answer, next) {
  const grid = at("grid");
  if (!next) {
    grid.replaceChildren();
    state.shown = 0;
  }
  at("more").hidden = !answer?.more;
  at("empty").hidden = true;
  if (!answer) return;
  const first = grid.children.length;
  grid.append(...answer.matches.map(card));
  state.shown += answer.matches.length;
  state.version = answer.version;
  if (next) grid.children[first]?.querySelector("button")?.focus({ preventScroll: true });
  if (!state.shown) {
    at("empty").textContent = nothing();
    at("empty").hidden = false;
    at("status").textContent = "Nothing found.";
    return;
  }
  const time = `${number.format(Math.round(answer.seconds * 1000))} ms`;
  at("status").textContent = `${plural(state.shown, "match", "matches")}, best first (${time})`;
}

/** Returns in words why nothing was found. */
function nothing() {
  const filtered = document.querySelector("#columns input:checked");
  const precise = at("precision").value;
  if (filtered && precise) return "Nothing found: no image that passes the filters is similar enough.";
  if (filtered) return "Nothing found: no image passes these filters. Clear some of them.";
  if (precise) {
    return `Nothing found: no image is so similar that ${percent(Number(precise))} of such matches
      are right. Ask for a lower precision to see the nearest ones.`;
  }
  return "Nothing found: the index has no other images.";
}

function card(match) {
  const name = match.id.split("/").pop();
  const again = make(
    "button",
    { type: "button", className: "shot", title: "Search with this" },
    picture(match),
    make("span", { className: "rank", textContent: match.rank, ariaHidden: "true" }),
    make("span", { className: "over", textContent: "Search with this" }),
  );
  again.setAttribute("aria-label", `Search with match ${match.rank}, ${match.id}`);
  again.addEventListener("click", () => {
    begin({ id: match.id, picture: match.thumbnail });
    at("matches").focus({ preventScroll: true });
  });
  const words = Object.entries(match.words).map(([column, word]) =>
    make("li", {}, make("span", { className: "column", textContent: column }), ` ${word}`),
  );
  return make(
    "li",
    { className: "card" },
    again,
    make("p", { className: "name", textContent: name, title: match.id }),
    make("p", { className: "score", textContent: scored(match.score) }),
    ...(match.confidence === null ? [] : [sureness(match.confidence)]),
    ...(words.length ? [make("ul", { className: "words" }, ...words)] : []),
  );
}

/** Returns how sure a match is, in a colour that says whether that is much. */
function sureness(confidence) {
  const rounded = Math.round(confidence * 100);
  return make("p", {
    className: rounded >= 80 ? "sure good" : rounded < 50 ? "sure poor" : "sure",
    textContent: `${percent(confidence)} sure`,
    title: "Estimated probability that it shows the same thing",
  });
}

/** Returns the thumbnail of a match, or words where there is none. */
function picture(match) {
  if (!match.thumbnail) return make("span", { className: "none", textContent: "No picture" });
  const image = make("img", {
    src: match.thumbnail,
    alt: `Match ${match.rank}: ${match.id}`,
    loading: "lazy",
    decoding: "async",
  });
  image.addEventListener("error", () => {
    image.replaceWith(
      make("span", { className: "none", textContent: "The file was moved or changed" }),
    );
  });
  return image;
}

/** Returns a score in words of the similarity. */
function scored(score) {
  const kind = state.facts?.similarity;
  if (kind === "euclidean") return `distance ${(-score).toPrecision(3)}`;
  if (kind === "hamming") return plural(-score, "bit") + " differ" + (score === -1 ? "s" : "");
  return `similarity ${score.toFixed(3)}`;
}

function showFailure(failure, next = false) {
  at("alert").hidden = !failure;
  if (!failure) return;
  at("error").textContent = failure.message;
  at("remedy").textContent = failure.remedy;
  at("again").hidden = !failure.canRetry || !state.query;
  at("again").onclick = () => search({ next });
}

// --- The query -----------------------------------------------------------------------------------

/** Searches with a file or an image of the index, and remembers it for the button "back". */
function begin(query) {
  state.past.length = (history.state?.place ?? -1) + 1;
  state.past.push(query);
  history.pushState({ place: state.past.length - 1 }, "");
  take(query);
}

function take(query) {
  state.query = query;
  const before = at("picture").src;
  if (before.startsWith("blob:")) URL.revokeObjectURL(before);
  at("preview").hidden = !query;
  at("drop").classList.toggle("filled", Boolean(query));
  at("choose").textContent = query ? "Choose another" : "Choose an image";
  const source = query?.file && !query.refused ? URL.createObjectURL(query.file) : query?.picture;
  at("picture").hidden = !source;
  if (source) at("picture").src = source;
  else at("picture").removeAttribute("src");
  at("called").textContent = query?.id ?? query?.file.name ?? "";
  at("picture").alt = `Query: ${at("called").textContent || "pasted image"}`;
  if (!query || query.refused) {
    state.request?.abort();
    show(null, false);
    at("status").textContent = "";
    at("empty").textContent = INVITATION;
    at("empty").hidden = Boolean(query);
    showFailure(query?.refused ?? null);
  } else search();
  window.scrollTo({ top: 0 });
}

function takeFile(file) {
  const most = state.facts?.most_bytes;
  if (!most || file.size <= most) {
    begin({ file });
    return;
  }
  const what = `This file has ${megabytes(file.size)}, the service takes ${megabytes(most)}.`;
  begin({ file, refused: new Failure(what, "Give a smaller image.", false) });
}

// The browser cannot show it; the service may read it all the same.
at("picture").addEventListener("error", () => {
  at("picture").hidden = true;
});

/** Takes the first image that was dropped or pasted; says so where there is none. */
function takeFrom(transfer) {
  const file = [...(transfer?.files ?? [])][0];
  if (file) {
    takeFile(file);
    return true;
  }
  return false;
}

at("file").addEventListener("change", () => {
  const file = at("file").files[0];
  if (file) takeFile(file);
  at("file").value = ""; // so that the same file can be chosen again
});

document.addEventListener("paste", (event) => {
  if (takeFrom(event.clipboardData)) event.preventDefault();
});

let entered = 0;
const dragsFile = (event) => event.dataTransfer?.types.includes("Files");
document.addEventListener("dragenter", (event) => {
  if (!dragsFile(event)) return;
  entered += 1;
  document.body.classList.add("dragging");
});
document.addEventListener("dragleave", (event) => {
  if (!dragsFile(event)) return;
  entered -= 1;
  if (entered <= 0) document.body.classList.remove("dragging");
});
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", (event) => {
  event.preventDefault();
  entered = 0;
  document.body.classList.remove("dragging");
  if (!takeFrom(event.dataTransfer)) {
    showFailure(
      new Failure(
        "What was dropped is not a file.",
        "Save the image first, or copy it and paste it here.",
        false,
      ),
    );
  }
});

window.addEventListener("popstate", (event) => take(state.past[event.state?.place] ?? null));

at("form").addEventListener("submit", (event) => event.preventDefault());
at("more").addEventListener("click", () => search({ next: true }));
for (const id of ["count", "precision"]) at(id).addEventListener("change", () => search());

// --- Filters -------------------------------------------------------------------------------------

at("columns").addEventListener("change", (event) => {
  if (event.target.type !== "checkbox") return;
  countFilters();
  search();
});
at("clear").addEventListener("click", () => {
  for (const box of document.querySelectorAll("#columns input:checked")) box.checked = false;
  countFilters();
  search();
  at("columns").querySelector("summary")?.focus();
});

function countFilters() {
  let all = 0;
  for (const column of document.querySelectorAll("#columns details")) {
    const chosen = column.querySelectorAll("input:checked").length;
    column.querySelector(".chosen").textContent = chosen ? `${chosen} chosen` : "";
    all += chosen;
  }
  at("clear").hidden = !all;
}

/** Draws the filters; those that were chosen stay so. */
function drawFilters(columns) {
  const chosen = new Set();
  for (const box of document.querySelectorAll("#columns input:checked")) {
    chosen.add(`${box.dataset.column}=${box.value}`);
  }
  const opened = new Set();
  for (const one of document.querySelectorAll("#columns details[open]")) opened.add(one.dataset.name);
  const wide = matchMedia("(min-width: 52rem)").matches;
  const first = columns.length && !at("columns").children.length ? columns[0].name : null;
  at("columns").replaceChildren(
    ...columns.map((column) => filterOf(column, chosen, opened.has(column.name) || (wide && column.name === first))),
  );
  at("filters").hidden = !columns.length;
  countFilters();
}

function filterOf(column, chosen, open) {
  const words = column.words.map(({ word, images }) => {
    const box = make("input", { type: "checkbox", value: word });
    box.dataset.column = column.name;
    box.checked = chosen.has(`${column.name}=${word}`);
    return make(
      "label",
      { className: "word" },
      box,
      make("span", { className: "text", textContent: word }),
      make("span", {
        className: "images",
        textContent: number.format(images),
        attributes: { "aria-label": plural(images, "image") },
      }),
    );
  });
  const set = make("fieldset", {}, make("legend", { className: "hidden", textContent: column.name }));
  if (words.length > WORDS_SHOWN) set.append(finder(column.name, words));
  set.append(make("div", { className: "list" }, ...words));
  if (!column.complete) {
    set.append(make("p", { className: "hint", textContent: `The ${words.length} most frequent.` }));
  }
  const made = make(
    "details",
    { open },
    make(
      "summary",
      {},
      make("span", { textContent: column.name }),
      make("span", { className: "chosen" }),
    ),
    set,
  );
  made.dataset.name = column.name;
  return made;
}

/** Returns a field that narrows a long list of words. */
function finder(name, words) {
  const field = make("input", {
    type: "search",
    placeholder: `Find among ${words.length}…`,
    attributes: { "aria-label": `Find in ${name}`, autocomplete: "off" },
  });
  field.addEventListener("input", () => {
    const part = field.value.trim().toLowerCase();
    for (const word of words) {
      word.hidden = !word.querySelector(".text").textContent.toLowerCase().includes(part);
    }
  });
  return field;
}

// --- Start ---------------------------------------------------------------------------------------

async function refreshFacts() {
  try {
    state.facts = await ask("/api/index");
  } catch (problem) {
    if (!(problem instanceof Failure)) throw problem;
    at("facts").textContent = "";
    showFailure(problem);
    return;
  }
  const facts = state.facts;
  const backend =
    facts.recall_at_10 === null
      ? `${facts.backend} search`
      : `${facts.backend}, recall ${(facts.recall_at_10 * 100).toFixed(1)}%`;
  at("facts").replaceChildren(
    make("strong", { textContent: facts.name }),
    ...[plural(facts.images, "image"), facts.model, backend].map((text) =>
      make("span", { textContent: text }),
    ),
  );
  at("facts").title = facts.about;
  document.title = `${facts.name}: image search`;
  offerPrecisions(facts.precisions);
  at("file").accept = facts.endings.join();
  at("hint").textContent = `Up to ${megabytes(facts.most_bytes)}`;
  if (facts.takes !== "images") {
    at("drop").hidden = true;
    at("empty").textContent = "This index was made from vectors: programs search it by id.";
  }
  drawFilters(facts.columns);
}

/** Offers the precisions that can be asked for, and says why the others cannot be. */
function offerPrecisions(precisions) {
  const asked = at("precision").value;
  const reasons = new Map();
  const options = precisions.map(({ precision, problem }) => {
    const textContent = percent(precision);
    if (problem) reasons.set(problem, [...(reasons.get(problem) ?? []), textContent]);
    const selected = !problem && asked === String(precision);
    return make("option", { value: String(precision), textContent, selected, disabled: Boolean(problem) });
  });
  at("precision").replaceChildren(make("option", { value: "", textContent: "any" }), ...options);
  at("precisionless").textContent = [...reasons]
    .map(([problem, shares]) => `${shares.join(", ")}: ${problem}.`)
    .join(" ");
  at("precisionless").hidden = !reasons.size;
  at("sureness").hidden = !precisions.length;
}

// The token has become a cookie: it need not stay in the address.
if (location.search) history.replaceState(null, "", location.pathname);
else history.replaceState(null, "");
refreshFacts();
