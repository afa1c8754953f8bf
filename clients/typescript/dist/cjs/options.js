"use strict";
/** The options of a client and of its calls, and the checks of them before anything is sent. */
Object.defineProperty(exports, "__esModule", { value: true });
exports.namesOf = exports.checkOptions = exports.refuseUnknown = exports.checkClientOptions = void 0;
const errors_js_1 = require("./errors.js");
const requests_js_1 = require("./requests.js");
const CLIENT_OPTIONS = ['bearer', 'holder', 'timeout', 'patience', 'poll', 'batchAfter', 'onRetry', 'fetch'];
/** Throws a TypeError or RangeError for options that a caller in JavaScript may pass though their types forbid them. */
function checkClientOptions(options) {
    refuseUnknown(options, CLIENT_OPTIONS);
    for (const name of ['timeout', 'patience', 'poll'])
        checkMilliseconds(name, options[name]);
    for (const [name, types] of [['bearer', ['string', 'function']], ['batchAfter', ['number']], ['holder', ['string']], ['onRetry', ['function']], ['fetch', ['function']]]) {
        const value = options[name];
        if (value !== undefined && !types.some((type) => type === typeof value))
            throw new TypeError(`${name} must be a ${types.join(' or a ')}, not ${typeof value}`);
    }
}
exports.checkClientOptions = checkClientOptions;
function refuseUnknown(options, known) {
    if (typeof options !== 'object' || options === null)
        throw new TypeError(`options must be an object, not ${options === null ? 'null' : typeof options}`);
    const unknown = Object.keys(options).find((name) => !known.includes(name));
    if (unknown)
        throw new TypeError(`unknown option ${(0, errors_js_1.shown)(unknown)}: the options are ${known.join(', ')}`);
}
exports.refuseUnknown = refuseUnknown;
function checkMilliseconds(name, value) {
    if (value === undefined)
        return;
    if (typeof value !== 'number')
        throw new TypeError(`${name} must be a number of milliseconds, not ${typeof value}`);
    if (!(value >= 0))
        throw new RangeError(`${name} must be 0 milliseconds or more, not ${value}`);
}
const OPTIONS = ['ttl', 'wait', 'patience', 'minHold', 'maxHold', 'slots', 'holder', 'metadata', 'signal', 'margin', 'onLost'];
/** The same for the options of a call, before anything is sent. */
function checkOptions(options, names) {
    refuseUnknown(options, OPTIONS);
    for (const name of ['ttl', 'wait', 'patience', 'minHold', 'maxHold', 'margin'])
        checkMilliseconds(name, options[name]);
    const { ttl, minHold, maxHold, slots, holder } = options;
    if (ttl !== undefined)
        checkRange('ttl', ttl, 100, DAY);
    if (minHold !== undefined && ttl !== undefined)
        checkRange('minHold', minHold, 0, ttl);
    if (maxHold !== undefined)
        checkRange('maxHold', maxHold, ttl ?? 0, 3650 * DAY);
    if (slots !== undefined && names.length > 1)
        throw new TypeError('slots are of one resource');
    if (slots !== undefined && !(Number.isInteger(slots) && slots >= 1 && slots <= 32))
        throw new RangeError(`slots must be a whole number from 1 to 32, not ${slots}`);
    if (holder !== undefined)
        checkLabel('holder', holder, 0);
}
exports.checkOptions = checkOptions;
const DAY = 86400000;
const LONGEST_NAME = 256; // bytes, also of a holder
const MOST_RESOURCES = 16;
function checkRange(name, value, least, most) {
    if (!(value >= least && value <= most))
        throw new RangeError(`${name} must be ${least} to ${most} milliseconds, not ${value}`);
}
function checkLabel(what, text, least) {
    if (typeof text !== 'string')
        throw new TypeError(`${what} must be a string, not ${typeof text}`);
    const { length } = new TextEncoder().encode(text);
    if (length < least || length > LONGEST_NAME)
        throw new RangeError(`${what} must have ${least} to ${LONGEST_NAME} bytes, not ${length}`);
    if (/[\0-\x1f\x7f-\x9f]/.test(text))
        throw new RangeError(`${what} must have no control characters`);
}
function namesOf(resource) {
    if (typeof resource !== 'string' && !Array.isArray(resource))
        throw new TypeError(`a resource must be a string or an array of strings, not ${typeof resource}`);
    const names = typeof resource === 'string' ? [resource] : [...resource];
    if (names.length === 0)
        throw new TypeError('name a resource');
    const wrong = names.find((name) => typeof name !== 'string');
    if (wrong !== undefined)
        throw new TypeError(`a resource must be a string, not ${typeof wrong}`);
    for (const name of names) {
        (0, requests_js_1.encoded)(name);
        checkLabel('a resource', name, 1);
    }
    if (names.length > MOST_RESOURCES)
        throw new RangeError(`a lease is of ${MOST_RESOURCES} resources at most, not ${names.length}`);
    if (new Set(names).size < names.length)
        throw new RangeError('a lease names each of its resources once');
    return names;
}
exports.namesOf = namesOf;
