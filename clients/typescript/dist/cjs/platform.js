"use strict";
/** Types of the platform as the application's compiler knows them: from the DOM's library, or from Node's types. With
 * neither they have what this library needs of them. */
Object.defineProperty(exports, "__esModule", { value: true });
