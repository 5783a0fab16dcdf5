// A receiver. It reads one request per line, {"secret", "headers", "body" in base64}, and answers each with one line, a
// JSON string: "verified", "refused: " and the library's reason, or "failed: " and what else went wrong.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";

// The library is installed in the working directory, not beside this file.
const require = createRequire(`${process.cwd()}/`);
const { Webhook, WebhookVerificationError } = require("standardwebhooks");

function answer(line) {
  try {
    const { secret, headers, body } = JSON.parse(line);
    // Not every body here is JSON, which the library would parse after verifying.
    new Webhook(secret).verify(Buffer.from(body, "base64"), headers, { jsonParse: false });
    return "verified";
  } catch (error) {
    if (error instanceof WebhookVerificationError) {
      return `refused: ${error.message}`;
    }
    return `failed: ${error}`;
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(`${JSON.stringify(answer(line))}\n`);
}
