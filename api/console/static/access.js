// Who the user is, and what that user may do.
import { bearer, call, Refusal } from './api.js';
import { $, make, once, put } from './words.js';

const MAY = { none: 'nothing with', read: 'read', acquire: 'read, acquire and write', admin: 'read, acquire, write and break' };

export class Access {
  #live;

  constructor(live) {
    this.#live = live;
    $('access').addEventListener('click', () => this.ask());
    $('access-cancel').addEventListener('click', () => $('access-dialog').close());
    $('access-forget').addEventListener('click', () => {
      $('access-dialog').close();
      this.#use('');
    });
    $('access-form').addEventListener('submit', (event) => {
      event.preventDefault();
      this.#try($('bearer').value.trim());
    });
  }

  ask(problem = '') {
    $('bearer').value = '';
    this.#problem(problem);
    this.show();
    if (!$('access-dialog').open) $('access-dialog').showModal();
    if ($('access-token').hidden) $('access-cancel').focus();
    else $('bearer').focus();
  }

  #problem(text) {
    put($('access-problem'), text);
    $('access-problem').hidden = !text;
    if (text) $('bearer').setAttribute('aria-invalid', 'true');
    else $('bearer').removeAttribute('aria-invalid');
  }

  // try asks the service whom the token names, before it is used.
  async #try(token) {
    $('access-use').disabled = true;
    try {
      if (!token) throw new Refusal(401, { detail: 'Type the bearer token that an administrator gave you.' });
      await call('GET', 'whoami', { token });
      $('access-dialog').close();
      this.#use(token);
    } catch (error) {
      if (error.status === undefined) throw error;
      this.#problem(error.status === 401 && token ? 'The service refuses this bearer token: it does not know it, or it has expired. See that it is complete.' : error.message);
      $('bearer').focus();
    }
    $('access-use').disabled = false;
  }

  #use(token) {
    bearer.set(token);
    this.#live.restart();
  }

  show() {
    const { me, link } = this.#live;
    put($('access'), me ? (me.name ? `Access: ${me.name}` : 'Access: open') : link === 'refused' ? 'Sign in' : 'Access');
    $('access-token').hidden = $('access-use').hidden = Boolean(me && !me.name);
    $('access-forget').hidden = !bearer.get();
    once($('access-me'), me ?? link, () => {
      if (!me) return [make('p', '', link === 'refused' ? 'This service asks who you are.' : 'It is not known who you are here: the server has not answered yet.')];
      if (!me.name) return [make('p', '', 'This service has no access control: every caller may do everything.')];
      return [make('p', '', 'You are ', make('b', '', me.name), me.rules.length ? '. You may' : ', and have no rights here.'),
        make('ul', 'rules', ...me.rules.map((r) => make('li', '', `${MAY[r.right] ?? r.right} `, r.prefix ? make('code', '', `${r.prefix}…`) : 'every other resource')))];
    });
  }
}
