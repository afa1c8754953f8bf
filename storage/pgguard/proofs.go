package pgguard

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/fencelock/fencelock/fencing"
)

// SetProofKeys replaces the keys with which the guard verifies proofs. Like Install, it needs the schema's
// owner. An error never shows a key.
func SetProofKeys(ctx context.Context, url string, keys *fencing.ProofKeys) error {
	return withPool(ctx, url, func(ctx context.Context, pool *pgxpool.Pool) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			var ids []string
			for _, key := range keys.Keys() {
				ids = append(ids, key.ID)
				if _, err := tx.Exec(ctx, `SELECT fencing.set_proof_key($1, $2)`, key.ID, key.Secret); err != nil {
					return fmt.Errorf("set proof key %s: %w", key.ID, err)
				}
			}
			_, err := tx.Exec(ctx, `DELETE FROM fencing.proof_keys WHERE id <> ALL ($1)`, ids)
			return err
		})
	})
}
