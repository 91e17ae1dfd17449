/* The page around the figures: sorting, filtering, light and dark, copying, contents, printing. */

const each = (where, what, then) => where.querySelectorAll(what).forEach(then);

/* ---- tables: best first, then reversed, then as they came ---- */

function sortable(box) {
  const body = box.querySelector("tbody");
  const original = [...body.rows];
  const restore = box.querySelector(".restore");
  const heads = [...box.querySelectorAll("thead th")];

  function arrange(column, direction) {
    heads.forEach((head, i) => (direction && i === column ? head.setAttribute("aria-sort", direction) : head.removeAttribute("aria-sort")));
    restore.hidden = !direction;
    const sign = direction === "ascending" ? 1 : -1;
    const order = (row) => row.cells[column].dataset.order;
    const compare = (a, b) => {
      if (column === 0) return sign * a.cells[0].textContent.localeCompare(b.cells[0].textContent, "en", { numeric: true });
      if (order(a) === undefined || order(b) === undefined) return (order(a) === undefined) - (order(b) === undefined); // no number: last
      return sign * (order(a) - order(b));
    };
    body.append(...(direction ? [...original].sort(compare) : original));
  }

  heads.forEach((head, column) => {
    const button = head.querySelector("button");
    const first = button.dataset.first;
    const second = first === "ascending" ? "descending" : "ascending";
    const next = { [first]: second, [second]: null };
    button.addEventListener("click", () => {
      const now = head.getAttribute("aria-sort");
      arrange(column, now ? next[now] : first);
    });
  });
  restore.addEventListener("click", () => {
    arrange(-1, null);
    heads[0].querySelector("button").focus();
  });
}
each(document, ".results", sortable);

/* ---- claims by verdict ---- */

function choose(verdict) {
  let count = 0;
  each(document, ".claim", (claim) => {
    claim.hidden = Boolean(verdict) && claim.dataset.verdict !== verdict;
    count += !claim.hidden;
  });
  each(document, ".pill", (pill) => pill.setAttribute("aria-pressed", String(pill.dataset.verdict === verdict)));
  document.getElementById("shown").textContent = `${count} claims shown`;
}
each(document, ".pill", (pill) => pill.addEventListener("click", () => choose(pill.dataset.verdict)));
// a link to a claim that is filtered away shows all again
each(document, 'a[href^="#claim-"]', (link) => link.addEventListener("click", () => document.querySelector(link.hash)?.hidden && choose("")));

/* ---- light and dark ---- */

const theme = document.getElementById("theme");
const night = matchMedia("(prefers-color-scheme: dark)");
const kept = { get: () => { try { return localStorage.getItem("repulse-theme"); } catch { return null; } },
  set: (value) => { try { localStorage.setItem("repulse-theme", value); } catch { /* a page that may not keep anything */ } } };

function paint(choice) {
  if (choice) document.documentElement.dataset.theme = choice;
  const dark = choice ? choice === "dark" : night.matches;
  theme.textContent = dark ? "Light" : "Dark";
  theme.setAttribute("aria-label", `Switch to the ${dark ? "light" : "dark"} theme`);
}
paint(kept.get());
night.addEventListener("change", () => paint(document.documentElement.dataset.theme));
theme.addEventListener("click", () => {
  const choice = theme.textContent.toLowerCase();
  kept.set(choice);
  paint(choice);
});

const printed = document.getElementById("printed");
printed?.addEventListener("click", () => {
  const bare = document.documentElement.classList.toggle("bare");
  printed.setAttribute("aria-pressed", String(!bare));
});

/* ---- commands ---- */

each(document, ".command", (box) => {
  const [code, button] = box.children;
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
});

/* ---- contents: where we are; open where there is room ---- */

const contents = document.querySelector("nav details");
const wide = matchMedia("(min-width: 66rem)");
const unfold = () => (contents.open = wide.matches);
wide.addEventListener("change", unfold);
unfold();

const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
const watch = new IntersectionObserver(
  (entries) => {
    for (const entry of entries.filter((one) => one.isIntersecting)) {
      links.forEach((link, id) => (id === entry.target.id ? link.setAttribute("aria-current", "true") : link.removeAttribute("aria-current")));
    }
  },
  { rootMargin: "-20% 0px -75% 0px" },
);
each(document, "main > section", (section) => watch.observe(section));

/* ---- printing opens all that is folded ---- */

matchMedia("print").addEventListener("change", (event) => {
  if (!event.matches) return unfold();
  each(document, "details", (details) => (details.open = true));
});
