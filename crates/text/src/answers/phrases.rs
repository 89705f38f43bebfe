//! The phrases of answers, language by language. Letter case, accents, punctuation and apostrophes are
//! ignored.
//!
//! A phrase belongs here only if it means the same in every language of the tables, and if nobody means the
//! opposite by it: "no problem", "always" and "Tak" (Polish for yes, Danish for thanks) are asked again.

/// Phrases that agree, also one after another: "Yes, go ahead".
pub(super) const YES: &[&str] = &[
    // English
    "yes, yep, yup, yeah, yea, yes yes, yes yes yes, ok, okay, o k, ok then, okay then, sure, alright, \
     all right, of course, certainly, absolutely, definitely, go, go ahead, go for it, go on, proceed, \
     continue, carry on, please do, please do it, please go ahead, please proceed, do it, do that, do this, \
     just do it, run it, send it, publish it, submit it, post it, ship it, make it so, lets go, lets do it, \
     correct, thats right, thats correct, sounds good, sounds great, looks good, looks great, \
     looks good to me, sounds good to me, works for me, fine by me, fine with me, ok with me, lgtm, true, \
     you may, you can, i do, i am sure, permission granted",
    "agree, i agree, agreed, confirm, i confirm, confirmed, confirm it, accept, i accept, accepted, accept it, \
     approve, i approve, approved, approve it, approve this, allow, i allow it, allowed, allow it, allow this, \
     allow this call, permit, permitted, grant, granted, user yes, the user said yes, user said yes, \
     the user agreed, the user agrees, the user approved, the user approved it, the user approves, \
     the user has approved, the user has approved it, user approved, user has approved this call, \
     the user confirmed, decision allow, decision approve, decision yes",
    "yes do it, yes do that, yes go ahead, yes proceed, yes continue, yes send it, yes please do, \
     yes please go ahead, yes of course, yes i am sure, yes i agree, yes approve, yes approved, yes allow, \
     yes allow it, yes thats fine, yes thats right, ok go ahead, ok do it, ok great, ok good, sure go ahead, \
     great go ahead, perfect go ahead, right go ahead",
    // German
    "ja, jawohl, jo, jep, jup, ja ja, ja gerne, ja klar, ja mach das, na klar, klar, natürlich, natuerlich, \
     selbstverständlich, sicher, gern, gerne, sehr gerne, in ordnung, einverstanden, erlauben, erlaubt, \
     erlaube es, ich erlaube es, genehmigen, genehmigt, bestätigen, bestätigt, zulassen, zustimmen, \
     ich stimme zu, freigeben, nur zu, leg los, los, mach das, mach es, mach weiter, weiter, genau, stimmt, \
     sieht gut aus, klingt gut",
    // French
    "oui, ouais, oui oui, oui vas-y, oui bien sûr, d'accord, je suis d'accord, bien sûr, certainement, \
     volontiers, vas-y, allez-y, fais-le, faites-le, autoriser, autorisé, j'autorise, approuver, approuvé, \
     j'approuve, accepter, accepté, j'accepte, confirmer, confirmé, je confirme, parfait, très bien, exact, \
     continuez, ça marche",
    // Spanish
    "sí, sí claro, sí adelante, claro, claro que sí, por supuesto, vale, de acuerdo, estoy de acuerdo, \
     adelante, hazlo, dale, procede, permitir, permitido, aprobar, apruebo, aprobado, aceptar, acepto, \
     autorizar, autorizo, confirmar, confirmo, está bien, bien, muy bien, perfecto, correcto, continúa, sigue",
    // Portuguese
    "sim, com certeza, claro que sim, pode, pode ser, pode fazer, pode sim, vá em frente, faça, concordo, \
     aprovar, aprovo, aprovado, aceitar, aceito, beleza, certo, pode prosseguir, prossiga, perfeito, ótimo",
    // Italian
    "sì certo, sì va bene, certamente, va bene, vai, vai avanti, vai pure, fallo, fai pure, procedi, \
     d'accordo, sono d'accordo, consenti, approva, approvo, approvato, accetta, accetto, autorizzo, conferma, \
     confermo, perfetto, esatto, giusto, continua",
    // Dutch
    "oké, jawel, ja hoor, ja graag, ja prima, ga je gang, ga door, ga maar, doe maar, doe het, is goed, \
     dat is goed, prima, akkoord, zeker, natuurlijk, graag, toestaan, toegestaan, goedkeuren, goedgekeurd, \
     bevestigd, klopt",
    // Russian and Ukrainian
    "да, да да, да конечно, да давай, ага, угу, конечно, хорошо, ок, окей, давай, давайте, можно, разрешить, \
     разрешаю, разрешено, согласен, согласна, одобряю, подтверждаю, верно, отлично, продолжай, продолжайте, \
     делай, звичайно, добре, дозволяю, згоден, згодна",
    // Turkish
    "evet, evet evet, tamam, tamamdır, olur, tabii, tabii ki, elbette, onay, onayla, onaylıyorum, izin ver, \
     izin veriyorum, kabul, kabul ediyorum, devam, devam et, doğru",
    // Polish and Czech
    "tak zgadzam się, tak oczywiście, jasne, oczywiście, pewnie, dobrze, zgoda, zgadzam się, zezwalam, \
     zatwierdzam, akceptuję, potwierdzam, kontynuuj, można, w porządku, ano, jistě, samozřejmě, povoluji, \
     souhlasím",
    // Swedish, Danish and Norwegian
    "javisst, visst, självklart, selvfølgelig, naturligtvis, okej, gärna, tillåt, tillad, tillat, godkänn, \
     godkend, godkjenn",
    // Chinese
    "是, 是的, 对, 对的, 對, 對的, 好, 好的, 好啊, 好吧, 可以, 可以的, 行, 行的, 嗯, 当然, 當然, 当然可以, \
     當然可以, 同意, 我同意, 没错, 沒錯, 允许, 允許, 批准, 许可, 确认, 確認, 确定, 確定, 接受, 通过, 执行, \
     執行, 继续, 繼續, 请继续, 請繼續, 好的请继续",
    // Japanese
    "はい, はいお願いします, うん, ええ, いいよ, いいですよ, オーケー, okです, もちろん, もちろんです, 了解, \
     了解です, 了解しました, 承知しました, 許可, 許可する, 許可します, 承認, 承認する, 承認します, 同意します, \
     どうぞ, 進めて, 進めてください, お願いします, 実行して, 実行してください, 続けて, 続けてください",
    // Korean
    "네, 네네, 네 부탁합니다, 예, 응, 그래, 그래요, 물론, 물론이죠, 물론입니다, 좋아, 좋아요, 좋습니다, \
     오케이, 승인, 승인합니다, 허용, 허용합니다, 허락합니다, 확인, 동의, 동의합니다, 진행해, 진행해 주세요, \
     진행하세요, 계속해, 계속해 주세요, 해줘, 부탁합니다",
];

/// Phrases that agree as a whole answer; beside other words they may decline or doubt: "that's fine, thanks".
pub(super) const YES_ALONE: &[&str] = &[
    "good, great, perfect, fine, nice, right, its ok, it is ok, its fine, thats ok, thats okay, thats fine, \
     that is fine, passt, passt so, gut, sehr gut, c'est bon, ладно",
];

/// Phrases that agree from now on.
pub(super) const ALWAYS: &[&str] = &[
    "always allow, allow always, always approve, allow for session, allow for this session, \
     allow for the session, yes always, yes for this session, yes dont ask again, yes and dont ask again, \
     yes to all always, ja immer, immer erlauben, für diese sitzung erlauben, oui toujours, \
     toujours autoriser, autoriser pour cette session, sí siempre, permitir siempre, permitir en esta sesión, \
     sim sempre, permitir sempre, sì sempre, consenti sempre, ja altijd, altijd toestaan, да всегда, \
     всегда разрешать, evet her zaman, her zaman izin ver, tak zawsze, zawsze zezwalaj, ja alltid, ja altid, \
     始终允许, 始終允許, 总是允许, 總是允許, 本次会话允许, 常に許可, このセッションでは許可, 항상 허용",
];

/// Phrases that agree to everything of this kind.
pub(super) const ALL: &[&str] = &[
    "yes to all, yes to all of them, yes all, yes all of them, allow all, approve all, accept all, ja alle, \
     ja zu allen, ja für alle, alle erlauben, alle genehmigen, oui tous, oui à tous, sí a todo, sí a todos, \
     sim a tudo, sì tutti, sì a tutti, ja allemaal, да все, да всё, evet hepsi, tak wszystkie, 全部允许, \
     全部允許, 全部同意, すべて許可, 모두 허용",
];

/// Phrases that refuse or cancel, also one after another.
pub(super) const NO: &[&str] = &[
    // English
    "no, nope, nah, no no, no no no, no way, never, deny, denied, deny it, reject, rejected, reject it, \
     decline, declined, refuse, refused, i refuse, cancel, cancel it, cancel that, canceled, cancelled, abort, \
     stop, stop it, skip, skip it, dont, dont do it, do not, do not do it, please dont, please do not, \
     dont allow, do not allow, do not allow it, dont allow it, dont run it, do not run it, dont send it, \
     do not send it, not allowed, forbidden, not now, not yet, not ok, rather not, id rather not, \
     i would rather not, better not, of course not, absolutely not, certainly not, definitely not, i disagree, \
     none of these, i dont want that, i do not want that, i dont want it, false, user no, the user said no, \
     user said no, the user denied, the user denied it, the user declined, the user refused, \
     the user rejected, the user rejected it, user denied, decision deny, decision no",
    // German
    "nein, nein nein, ne, nö, nie, niemals, ablehnen, abgelehnt, abbrechen, verweigern, verboten, \
     nicht erlauben, nicht erlaubt, nicht einverstanden, auf keinen fall, auf gar keinen fall, lieber nicht, \
     besser nicht, bitte nicht, jetzt nicht, noch nicht, natürlich nicht, natuerlich nicht, sicher nicht, \
     mach das nicht, mach es nicht",
    // French
    "non, non non, jamais, refuser, refusé, je refuse, rejeter, rejeté, interdire, annuler, annule, \
     pas d'accord, pas question, surtout pas, plutôt pas, pas maintenant, pas encore, bien sûr que non, \
     certainement pas",
    // Spanish
    "nunca, jamás, denegar, denegado, rechazar, rechazado, rechazo, cancelar, cancela, de ninguna manera, \
     mejor no, claro que no, por supuesto que no, ahora no, todavía no",
    // Portuguese
    "não, nao, negar, negado, rejeitar, rejeitado, recusar, recuso, de jeito nenhum, melhor não, \
     claro que não, agora não, ainda não",
    // Italian
    "mai, nega, negato, rifiuta, rifiuto, rifiutato, annulla, assolutamente no, meglio di no, certo che no, \
     non ora, non adesso, non ancora, non farlo",
    // Dutch
    "nee, neen, nooit, weigeren, geweigerd, afwijzen, afgewezen, annuleren, liever niet, beter niet, \
     doe maar niet, niet doen, zeker niet, natuurlijk niet, nu niet, nog niet, niet toestaan",
    // Russian and Ukrainian
    "нет, нет нет, не надо, не нужно, не стоит, нельзя, никогда, запретить, запрещаю, отклонить, отклоняю, \
     отказать, отмена, отменить, конечно нет, лучше не надо, не сейчас, пока нет, не согласен, не согласна, \
     не разрешаю, ні, не треба",
    // Turkish
    "hayır, hayır hayır, olmaz, reddet, reddediyorum, iptal, iptal et, izin verme, asla, yapma, şimdi değil, \
     henüz değil",
    // Polish and Czech
    "nie nie, nigdy, odmów, odmawiam, odrzuć, odrzucam, anuluj, oczywiście że nie, lepiej nie, nie teraz, \
     jeszcze nie, nie zgadzam się, nie zezwalam, odmítnout, zamítnout, zrušit",
    // Swedish, Danish and Norwegian
    "nej, nej nej, nej tak, nei, aldrig, aldri, neka, avslå, afvis, avvis, avbryt, afbryd, helst inte",
    // Chinese
    "不, 不是, 不行, 不可以, 不要, 不同意, 不允许, 不允許, 不批准, 不好, 不对, 不用, 不用了, 不必, 否, 拒绝, \
     拒絕, 取消, 禁止, 驳回",
    // Japanese
    "いいえ, いえ, いや, だめ, だめです, ダメ, ダメです, 駄目, 駄目です, やめて, やめてください, 拒否, \
     拒否する, 拒否します, 却下, 却下します, キャンセル, 中止, 許可しない, 許可しません, しないで, \
     しないでください",
    // Korean
    "아니, 아니요, 아니오, 아뇨, 안돼, 안 돼, 안돼요, 안 돼요, 안됩니다, 안 됩니다, 싫어, 싫어요, 거부, \
     거부합니다, 거절, 거절합니다, 취소, 취소해 주세요, 하지 마, 하지 마세요, 하지마세요",
];

/// Phrases that change nothing behind an answer: "No, thanks", "allow once".
pub(super) const ASIDE: &[&str] = &[
    "please, pls, bitte, s'il te plaît, s'il vous plaît, por favor, per favore, alsjeblieft, alstublieft, \
     пожалуйста, будь ласка, lütfen, proszę, prosím",
    "thanks, thank you, thx, thanks a lot, many thanks, thank you very much, well done, danke, vielen dank, \
     merci, gracias, obrigado, obrigada, grazie, dank je, dank u, bedankt, спасибо, дякую, teşekkürler, \
     dziękuję, dzięki, děkuji, tack, takk, 谢谢, 謝謝, ありがとう, ありがとうございます, 감사합니다, 고마워요",
    "once, just once, only once, this time, just this once, just this time, only this time, einmal, \
     nur einmal, diesmal, nur diesmal, une fois, cette fois, una vez, esta vez, uma vez, desta vez, una volta, \
     questa volta",
];

/// Words for every choice, for none, and between several choices.
pub(super) const EVERY: &[&str] = &[
    "all, all of them, everything, both, both of them, alle, alles, beide, tous, toutes, todos, todas, tutti, \
     tutte, все, 全部, すべて, 모두, hepsi",
];
pub(super) const NONE: &[&str] =
    &["none, none of them, nothing, neither, keine, keins, aucun, aucune, ninguno, ninguna, nessuno, geen, \
     nenhum"];
pub(super) const AND: &[&str] = &["and, und, et, y, e, en, i, и, ve, och, og, 和, と, plus"];
