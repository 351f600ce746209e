// Puts a cell and gets it again, by the client that oapi-codegen has made of a worker's document.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/google/uuid"
)

func main() {
	client, err := NewClientWithResponses(os.Args[1])
	check(err)
	ctx, row := context.Background(), uuid.MustParse(os.Args[2])
	cell := PutMessage{RowKey: row, ColumnName: "BASE", RefKey: 1 << 40,
		Body: map[string]interface{}{"fare_cents": 1250}}
	put, err := client.PutCellWithResponse(ctx, "trips", cell)
	check(err)
	if put.JSON200 == nil {
		panic(put.Status())
	}
	got, err := client.GetCellWithResponse(ctx, "trips",
		&GetCellParams{RowKey: row.String(), ColumnName: "BASE", RefKey: 1 << 40})
	check(err)
	if got.JSON200 == nil {
		panic(got.Status())
	}
	cell.Body = map[string]interface{}{"fare_cents": 9}
	conflict, err := client.PutCellWithResponse(ctx, "trips", cell)
	check(err)
	if conflict.JSON409 == nil {
		panic(conflict.Status())
	}
	said, err := json.Marshal(map[string]interface{}{
		"outcome": put.JSON200.Outcome, "added_id": put.JSON200.AddedId,
		"body": got.JSON200.Body, "ref_key": got.JSON200.RefKey, "error": conflict.JSON409.Error})
	check(err)
	fmt.Println(string(said))
}

func check(err error) {
	if err != nil {
		panic(err)
	}
}
