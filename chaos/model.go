package chaos

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/anishathalye/porcupine"
)

// mark is the model's state of a guarded record: the largest token seen, and the last value written.
type mark struct {
	Token int64
	Value content
}

// searchWithin bounds the search for a valid order of one resource's operations.
const searchWithin = 30 * time.Second

// guardModel is the model of a guard. The search places an operation without a response where it takes effect,
// or after all others, where no client sees its effect.
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

// step reports whether the response is right in a state, and returns the next state.
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

// linearizable searches for an order of the guarded operations on one resource in which every response is
// right. First it omits operations without a response whose effect no client can have seen. This makes the
// search short, and loses nothing: such operations can always come last.
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
