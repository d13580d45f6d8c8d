// The OpenAPI document for people: every route with what it takes and answers.

import { byId, element, setText } from "./dom.js";

const ORDER = ["get", "post", "put", "delete"];

// Text in which `code` is marked, as descriptions are written.
function written(name, text) {
  const made = element(name);
  text.split("`").forEach((part, index) => made.append(index % 2 ? element("code", "", part) : part));
  return made;
}

function table(head, rows) {
  const made = element("table");
  const top = made.createTHead().insertRow();
  for (const each of head) {
    const cell = element("th", "", each);
    cell.scope = "col";
    top.append(cell);
  }
  const body = made.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    line.append(...row.map((each) => written("td", each)));
  }
  return made;
}

function kind(schema) {
  if (!schema) return "";
  if (schema.enum) return schema.enum.join(", ");
  if (schema.anyOf) return schema.anyOf.map(kind).join(" or ");
  return schema.type ?? "";
}

// What stands for a name in an example; others are written in capitals.
const NAMES = { model: "digits", name: "digits", device: "pi-1" };
const BODIES = [
  ["image/*", "-H 'Content-Type: image/jpeg' --data-binary @photo.jpg"],
  ["multipart/form-data", "-F image=@photo.jpg"],
  ["application/json", "-H 'Content-Type: application/json' -d @request.json"],
];

function example(path, method, bodies) {
  const url = location.origin + path.replace(/\{(\w+)\}/g, (_, name) => NAMES[name] ?? name.toUpperCase());
  const body = BODIES.find(([type]) => bodies.includes(type))?.[1];
  const how = method === (body ? "post" : "get") ? "" : `-X ${method.toUpperCase()}`;
  return ["curl", how, body, url].filter(Boolean).join(" ");
}

function route(path, method, said) {
  const card = element("section", "card");
  const title = element("h2");
  title.append(element("code", "", `${method.toUpperCase()} ${path}`));
  card.append(title, written("p", said.description ?? said.summary ?? ""));
  const taken = (said.parameters ?? []).map((each) => [each.name, each.in, kind(each.schema), each.description ?? ""]);
  if (taken.length) card.append(table(["Parameter", "In", "Type", "What"], taken));
  const bodies = Object.keys(said.requestBody?.content ?? {});
  if (bodies.length) card.append(element("p", "note", `Takes ${bodies.join(", ")}`));
  const shown = element("p", "note");
  shown.append(element("code", "", example(path, method, bodies)));
  card.append(shown);
  const answers = Object.entries(said.responses).map(([status, each]) => [status, Object.keys(each.content ?? {}).join(", "), each.description]);
  const folded = element("details");
  folded.append(element("summary", "", "Answers"), table(["Status", "Type", "When"], answers));
  card.append(folded);
  return card;
}

try {
  const said = await (await fetch("openapi.json")).json();
  const cards = Object.entries(said.paths).flatMap(([path, methods]) =>
    ORDER.filter((each) => each in methods).map((each) => route(path, each, methods[each])),
  );
  byId("routes").replaceChildren(element("p", "note", `${said.info.title} ${said.info.version}`), ...cards);
} catch (error) {
  setText("news", `the document cannot be read: ${error.message}`);
}
