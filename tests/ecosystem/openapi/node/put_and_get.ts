// Puts a cell and gets it again, by the client that openapi-ts has made of a worker's document.
import { createClient, createConfig } from "./client/client";
import { getCell, putCell } from "./client";

async function main(): Promise<void> {
  const [url, row] = process.argv.slice(2) as [string, string];
  const client = createClient(createConfig({ baseUrl: url }));
  const path = { datastore: "trips" };
  const cell = { row_key: row, column_name: "BASE", ref_key: 7, body: { fare_cents: 1250 } };
  const put = await putCell({ client, path, body: cell, throwOnError: true });
  const query = { row_key: row, column_name: "BASE", ref_key: 7 };
  const got = await getCell({ client, path, query, throwOnError: true });
  const conflict = await putCell({ client, path, body: { ...cell, body: { fare_cents: 9 } } });
  console.log(
    JSON.stringify({
      outcome: put.data.outcome,
      added_id: put.data.added_id,
      body: got.data.body,
      ref_key: got.data.ref_key,
      error: conflict.error?.error,
    }),
  );
}

void main();
