package chaos

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// mark is a guarded record as the model sees it: the largest token seen, and
// what was written last.
type mark struct {
	Token int64
	Value content
}

// searchWithin bounds the search for an order of one resource's operations.
const searchWithin = 30 * time.Second

// guardModel is what a guard may do. An operation without an answer is put
// where it takes effect, or behind everything else, where no client sees it.
func guardModel(start mark) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return start },
		Step: func(state, input, _ any) (bool, any) { return step(state.(mark), input.(*op)) }, //nolint:forcetypeassert,errcheck // as this model itself makes them
		DescribeOperation: func(input, _ any) string {
			o := input.(*op) //nolint:forcetypeassert,errcheck // as this model itself makes them
			return fmt.Sprintf("%s %d %s: %d", o.Kind, o.Token, o.ID, o.Status)
		},
	}
}

// step says whether the answer is right in a state, and which state follows.
func step(before mark, o *op) (right bool, after mark) {
	if o.stale() {
		return o.Token < before.Token && o.Highest == before.Token, before
	}
	if !o.ok() && !o.open() {
		return false, before
	}
	if o.Token < before.Token {
		return o.open(), before
	}
	after = mark{Token: o.Token, Value: before.Value}
	if o.Kind == opPut {
		after.Value = o.Value
	}
	return o.open() || o.Value == after.Value, after
}

// linearizable looks for an order of the guarded operations on one resource in
// which every answer is right. Operations without an answer that no client can
// have seen the effect of are left out first: that is what makes the search
// short, and an order without them is one with them at its end.
func linearizable(start mark, ops []*op, seen func(id string) bool) porcupine.CheckResult {
	highest := map[int64]bool{}
	for _, o := range ops {
		highest[o.Highest] = true
	}
	visible := slices.DeleteFunc(slices.Clone(ops), func(o *op) bool {
		return o.open() && !highest[o.Token] && (o.Kind != opPut || !seen(o.ID))
	})
	if check(start, visible) == porcupine.Ok {
		return porcupine.Ok
	}
	return check(start, ops)
}

func check(start mark, ops []*op) porcupine.CheckResult {
	list := make([]porcupine.Operation, 0, len(ops))
	for i, o := range ops {
		done := int64(o.Done)
		if o.open() {
			done = math.MaxInt64
		}
		list = append(list, porcupine.Operation{ClientId: i, Input: o, Call: int64(o.Sent), Return: done})
	}
	slices.SortFunc(list, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	return porcupine.CheckOperationsTimeout(guardModel(start), list, searchWithin)
}
