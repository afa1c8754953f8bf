"use strict";
/** Types of the platform as the application's compiler knows them: from the DOM's library, or from Node's types. With
 * neither, they are minimal interfaces with the methods that this library calls. */
Object.defineProperty(exports, "__esModule", { value: true });
