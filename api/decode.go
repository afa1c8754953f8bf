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

// acquireBody is the server's form of wire.AcquireRequest: a pointer is nil if its field is absent.
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

// decodeAcquire reads the body of POST /locks. namesWait reports whether the body has a wait_ms, which Prefer
// does not replace. The error is a *lockcore.FieldError.
func decodeAcquire(data []byte) (req lockcore.Request, namesWait bool, err error) {
	var body acquireBody
	if err := decodeJSON(data, &body); err != nil {
		return req, false, err
	}
	switch {
	case body.Resource == nil && body.Resources == nil:
		return req, false, badField("resource", "is required, or resources")
	case body.Resource == nil:
		req.Resources = body.Resources
	case body.Resources != nil:
		return req, false, badField("resources", "must not be given together with resource")
	default:
		req.Resource = *body.Resource
	}
	req.Slots = slots(body.Slots)
	req.TTL, req.Wait = ttlOf(body.TTLMS), millis(body.WaitMS)
	req.MinHold, req.MaxHold = millis(body.MinHoldMS), millis(body.MaxHoldMS)
	req.Holder = body.Holder
	if body.Metadata.Kind() != 'n' {
		req.Metadata = []byte(body.Metadata)
	}
	return req, body.WaitMS != nil, nil
}

// decodeExtend reads and checks the body of an extend. An empty body means the lease's last TTL (0). The error
// is a *lockcore.FieldError.
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

// breakBody is the server's form of wire.BreakRequest.
type breakBody struct {
	Resource     *string `json:"resource"`
	FencingToken *int64  `json:"fencing_token"`
	Any          *bool   `json:"any"`
}

// decodeBreak reads and checks the body of a break: its resource, and the token of the lease to break, or 0
// for any lease. The error is a *lockcore.FieldError.
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

// slots returns the number of slots in a request, or 0 if the field is absent. An explicit 0 becomes an
// out-of-bounds value.
func slots(named *int) int {
	switch {
	case named == nil:
		return 0
	case *named == 0:
		return -1
	}
	return *named
}

// ttlOf returns the TTL in a request, or 0 if the field is absent. An explicit 0 becomes an out-of-bounds
// value.
func ttlOf(ms *int64) time.Duration {
	if ms != nil && *ms == 0 {
		return -1
	}
	return millis(ms)
}

// millis converts milliseconds, 0 if absent. A value that is too long for a Duration becomes the longest one,
// which is out of every bound.
func millis(ms *int64) time.Duration {
	if ms == nil {
		return 0
	}
	const longest = int64(math.MaxInt64 / time.Millisecond)
	return time.Duration(max(-longest, min(*ms, longest))) * time.Millisecond
}

// strict refuses unknown fields. Package json by default refuses a name that occurs twice or in another case,
// invalid UTF-8, and anything after the value.
var strict = json.RejectUnknownMembers(true)

// strictNulls also refuses null, because absent fields must be omitted. Only fields that accept any JSON value
// may be null.
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
	if bytes.Contains(data, []byte("null")) { // null is rare, and checking each value doubles the time
		options = strictNulls
	}
	if err := json.Unmarshal(data, into, options); err != nil {
		return explain(err)
	}
	return nil
}

// tooDeep reports whether arrays and objects nest deeper than MaxBodyDepth, and at which byte. Package json's
// own limit is ten thousand.
func tooDeep(data []byte) (offset int64, deep bool) {
	if bytes.Count(data, []byte("["))+bytes.Count(data, []byte("{")) <= MaxBodyDepth {
		return 0, false // nearly always
	}
	dec := jsontext.NewDecoder(bytes.NewReader(data))
	for {
		if _, err := dec.ReadToken(); err != nil {
			return 0, false // the end, or an error that decoding explains better
		}
		if dec.StackDepth() > MaxBodyDepth {
			return dec.InputOffset() - 1, true
		}
	}
}

// explain converts an error of package json: which field is wrong, why, and where.
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

// wanted names, in JSON's terms, the values that decode into a type.
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

// clip shortens a name that a caller chose, to keep the response short.
func clip(name string) string {
	const maxBytes = 64
	return strings.ToValidUTF8(name[:min(len(name), maxBytes)], "…")
}
