// src/main.js and the packages that it uses -> page.js, with the licences of those packages at its top. Run it by
// `make show-page`, which installs the packages as package-lock.json pins them.
import { readFileSync, writeFileSync } from "node:fs";
import { build } from "esbuild";

const made = await build({
  entryPoints: ["src/main.js"],
  bundle: true,
  minify: true,
  format: "iife",
  target: "es2020",
  charset: "ascii",
  legalComments: "none",
  metafile: true,
  write: false,
});

// The packages that are in the bundle, by the files that went into it.
const names = new Set();
for (const [path, input] of Object.entries(Object.values(made.metafile.outputs)[0].inputs)) {
  const found = /^node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(path);
  if (found && input.bytesInOutput > 0) names.add(found[1]);
}
const texts = new Map();
for (const name of [...names].sort()) {
  const { version } = JSON.parse(readFileSync(`node_modules/${name}/package.json`, "utf8"));
  const licence = readFileSync(`node_modules/${name}/LICENSE`, "utf8").trim();
  if (licence.includes("*/") || /<\/script/i.test(licence)) throw new Error(`the licence of ${name} ends the comment`);
  texts.set(licence, [...(texts.get(licence) ?? []), `${name} ${version}`]);
}
const notices = [...texts].map(([text, users]) => `${users.join(", ")}:\n\n${text}`).join("\n\n");
const script = made.outputFiles[0].text.replaceAll("</script", "<\\/script").trimEnd();
writeFileSync("page.js", `/* collc show, Apache-2.0. It contains these packages:\n\n${notices}\n*/\n${script}\n`);
