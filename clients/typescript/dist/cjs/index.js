"use strict";
/** Leases with fencing tokens, from a fencelock service. See README.md. */
Object.defineProperty(exports, "__esModule", { value: true });
exports.guardError = exports.fenced = exports.Unavailable = exports.StaleToken = exports.Refused = exports.OtherLease = exports.LeaseLost = exports.Held = exports.FencelockError = exports.Denied = exports.Closed = exports.Client = void 0;
var client_js_1 = require("./client.js");
Object.defineProperty(exports, "Client", { enumerable: true, get: function () { return client_js_1.Client; } });
var errors_js_1 = require("./errors.js");
Object.defineProperty(exports, "Closed", { enumerable: true, get: function () { return errors_js_1.Closed; } });
Object.defineProperty(exports, "Denied", { enumerable: true, get: function () { return errors_js_1.Denied; } });
Object.defineProperty(exports, "FencelockError", { enumerable: true, get: function () { return errors_js_1.FencelockError; } });
Object.defineProperty(exports, "Held", { enumerable: true, get: function () { return errors_js_1.Held; } });
Object.defineProperty(exports, "LeaseLost", { enumerable: true, get: function () { return errors_js_1.LeaseLost; } });
Object.defineProperty(exports, "OtherLease", { enumerable: true, get: function () { return errors_js_1.OtherLease; } });
Object.defineProperty(exports, "Refused", { enumerable: true, get: function () { return errors_js_1.Refused; } });
Object.defineProperty(exports, "StaleToken", { enumerable: true, get: function () { return errors_js_1.StaleToken; } });
Object.defineProperty(exports, "Unavailable", { enumerable: true, get: function () { return errors_js_1.Unavailable; } });
var guard_js_1 = require("./guard.js");
Object.defineProperty(exports, "fenced", { enumerable: true, get: function () { return guard_js_1.fenced; } });
Object.defineProperty(exports, "guardError", { enumerable: true, get: function () { return guard_js_1.guardError; } });
