package api

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/fencelock/fencelock/api/wire"
	"github.com/fencelock/fencelock/fencing"
	"github.com/fencelock/fencelock/lockcore"
)

// acquireBody is wire.AcquireRequest as the server reads it: a pointer is nil for a
// member that is absent.
type acquireBody struct {
	Resource  *string        `json:"resource"`
	Resources []string       `json:"resources"`
	Slots     *int           `json:"slots"`
	TTLMS     *int64         `json:"ttl_ms"`
	WaitMS    *int64         `json:"wait_ms"`
	MinHoldMS *int64         `json:"min_hold_ms"`
	MaxHoldMS *int64         `json:"max_hold_ms"`
	Holder    string         `json:"holder"`
	Metadata  jsontext.Value `json:"metadata"`
}

// acquisition is an acquire request.
type acquisition struct {
	lockcore.AcquireRequest
	namesWait bool // wait_ms was given: Prefer is not a substitute for it
}

// decodeAcquire reads the body of POST /locks, and checks it against the limits. The error has a
// *lockcore.FieldError.
func decodeAcquire(data []byte, limits lockcore.Limits) (req acquisition, err error) {
	var body acquireBody
	if err := decodeJSON(data, &body); err != nil {
		return req, err
	}
	switch {
	case body.Resource == nil && body.Resources == nil:
		return req, badField("resource", "is required, or resources")
	case body.Resource == nil:
		req.Resources = body.Resources
	case body.Resources != nil:
		return req, badField("resources", "must not be given together with resource")
	default:
		req.Resource = *body.Resource
	}
	req.Slots = slots(body.Slots)
	req.TTL, req.Wait = ttlOf(body.TTLMS), millis(body.WaitMS)
	req.MinHold, req.MaxHold = millis(body.MinHoldMS), millis(body.MaxHoldMS)
	req.namesWait = body.WaitMS != nil
	req.Holder = body.Holder
	if body.Metadata.Kind() != 'n' {
		req.Metadata = []byte(body.Metadata)
	}
	checked := req.AcquireRequest // the Service makes its own of it
	return req, limits.Check(&checked)
}

// decodeExtend reads and checks the body of an extend; an empty one asks for
// the lease's last TTL (0). The error is a *lockcore.FieldError.
func decodeExtend(data []byte, limits lockcore.Limits) (time.Duration, error) {
	if len(data) == 0 {
		return 0, nil
	}
	var body wire.ExtendRequest
	if err := decodeJSON(data, &body); err != nil {
		return 0, err
	}
	ttl := ttlOf(body.TTLMS)
	_, err := limits.CheckTTL(ttl)
	return ttl, err
}

// breakBody is wire.BreakRequest as the server reads it.
type breakBody struct {
	Resource     *string `json:"resource"`
	FencingToken *int64  `json:"fencing_token"`
	Any          *bool   `json:"any"`
}

// decodeBreak reads and checks the body of a break: its resource, and the token of the lease
// to break, 0 for any. The error is a *lockcore.FieldError.
func decodeBreak(data []byte) (resource string, token fencing.Token, err error) {
	var body breakBody
	if err := decodeJSON(data, &body); err != nil {
		return "", 0, err
	}
	if body.Resource == nil {
		return "", 0, badField("resource", "is required")
	}
	if err := lockcore.ValidateResource(*body.Resource); err != nil {
		return "", 0, err
	}
	switch {
	case body.FencingToken == nil && body.Any == nil:
		return "", 0, badField("fencing_token", "is required: the token of the lease to break (GET /locks/{resource} shows it), or any")
	case body.FencingToken != nil && body.Any != nil:
		return "", 0, badField("any", "must not be given together with fencing_token")
	case body.Any != nil && !*body.Any:
		return "", 0, badField("any", "must be true, or absent beside a fencing_token")
	case body.Any != nil:
		return *body.Resource, 0, nil
	}
	token = fencing.Token(*body.FencingToken)
	if !token.Valid() {
		return "", 0, badField("fencing_token", fmt.Sprintf("must be a whole number from 1 to %d", fencing.MaxToken))
	}
	return *body.Resource, token, nil
}

// decodeValue checks a body that may be any JSON value, and copies it without
// the space around it. The error is a *lockcore.FieldError.
func decodeValue(data []byte) ([]byte, error) {
	var value jsontext.Value
	err := decodeJSON(data, &value)
	return value, err
}

// slots is the number of slots that a request names, 0 if it names none: a 0 that it names is
// out of bounds.
func slots(named *int) int {
	switch {
	case named == nil:
		return 0
	case *named == 0:
		return -1
	}
	return *named
}

// ttlOf is the TTL that a request names, 0 if it names none: a 0 that it names is out of bounds.
func ttlOf(ms *int64) time.Duration {
	if ms != nil && *ms == 0 {
		return -1
	}
	return millis(ms)
}

// millis is a duration, 0 if it is not given. One that is too long for a Duration is out of all
// bounds, as the longest.
func millis(ms *int64) time.Duration {
	if ms == nil {
		return 0
	}
	const longest = int64(math.MaxInt64 / time.Millisecond)
	return time.Duration(max(-longest, min(*ms, longest))) * time.Millisecond
}

// strict refuses unknown members. Package json refuses by itself a name that occurs
// twice or in other case, invalid UTF-8, and anything after the value.
var strict = json.RejectUnknownMembers(true)

// strictNulls also refuses null, since a member without a value is left out.
// Only what may be any JSON value may be null.
var strictNulls = json.JoinOptions(strict, json.WithUnmarshalers(json.UnmarshalFromFunc(
	func(dec *jsontext.Decoder, into any) error {
		if _, anything := into.(*jsontext.Value); anything || dec.PeekKind() != 'n' {
			return errors.ErrUnsupported // decode as usual
		}
		return &json.SemanticError{GoType: reflect.TypeOf(into)}
	})))

// decodeJSON reads data, which it does not keep, strictly into a struct. The
// error is a *lockcore.FieldError.
func decodeJSON(data []byte, into any) error {
	if offset, deep := tooDeep(data); deep {
		return badField(fieldBody, fmt.Sprintf("is not valid JSON: nested deeper than %d levels at byte %d", MaxBodyDepth, offset))
	}
	options := strict
	if bytes.Contains(data, []byte("null")) { // seldom, and looking at each value costs twice the time
		options = strictNulls
	}
	if err := json.Unmarshal(data, into, options); err != nil {
		return explain(err)
	}
	return nil
}

// tooDeep says whether arrays and objects nest deeper than MaxBodyDepth, and
// at which byte. Package json has a limit of its own, ten thousand.
func tooDeep(data []byte) (offset int64, deep bool) {
	if bytes.Count(data, []byte("["))+bytes.Count(data, []byte("{")) <= MaxBodyDepth {
		return 0, false // nearly always
	}
	dec := jsontext.NewDecoder(bytes.NewReader(data))
	for {
		if _, err := dec.ReadToken(); err != nil {
			return 0, false // the end, or what is explained better when it is decoded
		}
		if dec.StackDepth() > MaxBodyDepth {
			return dec.InputOffset() - 1, true
		}
	}
}

// explain says which field an error of package json is about, what is wrong and where.
func explain(err error) *lockcore.FieldError {
	var syntax *jsontext.SyntacticError
	var semantic *json.SemanticError
	switch {
	case errors.As(err, &syntax):
		return badField(fieldBody, fmt.Sprintf("is not valid JSON: %s at byte %d", syntaxReason(syntax), syntax.ByteOffset))
	case !errors.As(err, &semantic):
		return badField(fieldBody, "is not valid JSON: "+err.Error())
	case errors.Is(err, json.ErrUnknownName):
		return unknownField(semantic.JSONPointer.LastToken())
	}
	at := slices.Collect(semantic.JSONPointer.Tokens())
	switch len(at) {
	case 0:
		return badField(fieldBody, "must be "+wanted(semantic.GoType))
	case 1:
		return badField(at[0], "must be "+wanted(semantic.GoType))
	default:
		return badField(at[0], fmt.Sprintf("must contain %s at index %s", wanted(semantic.GoType), at[1]))
	}
}

func syntaxReason(err *jsontext.SyntacticError) string {
	if errors.Is(err, jsontext.ErrDuplicateName) {
		return fmt.Sprintf("name %q occurs twice", clip(err.JSONPointer.LastToken()))
	}
	return err.Err.Error()
}

// wanted says in JSON's words what decodes into a type.
func wanted(t reflect.Type) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Int64:
		return "a whole number, without fraction and exponent, of at most 64 bits"
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Struct {
			return "an array of objects"
		}
		return "an array of strings"
	default:
		return "a JSON object"
	}
}

func unknownField(name string) *lockcore.FieldError {
	if name == "" {
		return badField(fieldBody, "contains a field without a name")
	}
	return badField(clip(name), "is not a field of this request")
}

// clip shortens a name that a caller chose, so that an answer stays short.
func clip(name string) string {
	const maxBytes = 64
	return strings.ToValidUTF8(name[:min(len(name), maxBytes)], "…")
}
